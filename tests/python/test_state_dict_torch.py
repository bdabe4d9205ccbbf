"""State dicts of torch: dtypes that numpy lacks, parameters, and GPUs where there is one."""

import os
import pathlib

import glu_ckpt
import pytest

torch = pytest.importorskip("torch")
QWEN = pathlib.Path(os.environ["GLU_CKPT_TESTDATA"]) / "whole" / "qwen3_moe" / "hf"
NO_GPU = not torch.cuda.is_available() or not glu_ckpt._core.built_with_cuda()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(NO_GPU, reason="no GPU, or built without CUDA"))]


def model(device, seed=0):
    checkpoint = glu_ckpt.open(QWEN)
    torch.manual_seed(seed)
    return {name: torch.randn(checkpoint[name].shape).to(torch.bfloat16).to(device) for name in checkpoint}


def wanted(state, **options):
    """What the files of the same tensors become, through numpy-free handles on the CPU."""
    host = {name: tensor.cpu() for name, tensor in state.items()}
    return glu_ckpt.convert_state_dict(host, config=QWEN, **options)


def expect_equal(made, expected):
    assert made.keys() == expected.keys()
    for name, tensor in made.items():
        assert tensor.dtype == expected[name].dtype and torch.equal(tensor.cpu(), expected[name]), name


def test_bf16_is_as_files_have_it(tmp_path):
    checkpoint = glu_ckpt.open(QWEN)
    state = {name: checkpoint[name].torch() for name in checkpoint}
    for options in ({"to": "megatron"}, {"to": "megatron", "experts": "indexed", "glu": "interleaved:4"}):
        there = tmp_path / str(len(options))
        glu_ckpt.convert(QWEN, there, **options)
        files = glu_ckpt.open(there)
        expect_equal(
            glu_ckpt.convert_state_dict(state, config=QWEN, **options), {name: files[name].torch() for name in files}
        )


@pytest.mark.parametrize("device", DEVICES)
def test_parameters_are_filled_and_watched(device):
    state = {name: torch.nn.Parameter(tensor) for name, tensor in model(device).items()}
    plan = glu_ckpt.plan_state_dict(state, config=QWEN, to="megatron", glu="interleaved:4")
    made = plan.run(state)
    out = {name: torch.nn.Parameter(torch.zeros_like(tensor)) for name, tensor in made.items()}
    name = next(name for name in plan.outputs if name not in plan.renamed)
    version = out[name]._version
    plan.run(state, out)
    assert out[name]._version > version
    expect_equal({key: value.data for key, value in out.items()}, wanted(state, to="megatron", glu="interleaved:4"))
    back = glu_ckpt.convert_state_dict(made, config=QWEN, to="hf", from_glu="interleaved:4", experts="indexed")
    expect_equal(back, {key: value.data.cpu() for key, value in state.items()})


def test_a_plan_is_made_of_meta_tensors():
    state = model("cpu")
    meta = {name: tensor.to("meta") for name, tensor in state.items()}
    made = glu_ckpt.plan_state_dict(meta, config=QWEN, to="megatron").run(state)
    expect_equal(made, wanted(state, to="megatron"))
    with pytest.raises(glu_ckpt.Error, match="without an address"):
        glu_ckpt.convert_state_dict(meta, config=QWEN, to="megatron")


@pytest.mark.parametrize("device", DEVICES[1:])
def test_a_graph_replays_a_plan(device):
    state = model(device)
    plan = glu_ckpt.plan_state_dict(state, config=QWEN, to="megatron", glu="interleaved:4")
    out = {name: torch.zeros(info.shape, dtype=torch.bfloat16, device=device) for name, info in plan.outputs.items()}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        plan.run(state, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(state, out)
    for seed in (1, 2):
        for name, tensor in model(device, seed).items():
            state[name].copy_(tensor)
        graph.replay()
        torch.cuda.synchronize()
        expect_equal(out, wanted(state, to="megatron", glu="interleaved:4"))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_two_devices_are_not_mixed(device):
    state = model(device)
    plan = glu_ckpt.plan_state_dict(state, config=QWEN, to="megatron")
    out = {name: torch.zeros(info.shape, dtype=torch.bfloat16) for name, info in plan.outputs.items()}
    with pytest.raises(glu_ckpt.Error, match="is on cpu"):
        plan.run(state, out)


QUANTIZED = QWEN.parents[2] / "quantized"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(path.name for path in QUANTIZED.iterdir() if path.is_dir()))
def test_codes_are_decoded_where_they_are(name, device, tmp_path):
    """On a GPU by its kernels, and with the bits of the files' decoder."""
    source = QUANTIZED / name
    shards = glu_ckpt.open(source)
    host = {key: shards[key].torch() for key in shards}
    state = {key: tensor.to(device) for key, tensor in host.items()}
    for to in ("bf16", "f32"):
        for options in ({}, {"experts": "grouped", "scope": "experts", "glu": "interleaved:8", "naming": "megatron"}):
            options = {"decode": to, "force": True, **options}
            try:
                files = glu_ckpt.convert(source, tmp_path / f"{to}{len(options)}", **options)
            except glu_ckpt.Error as error:
                with pytest.raises(glu_ckpt.Error) as caught:
                    glu_ckpt.convert_state_dict(state, config=source, **options)
                assert caught.value.slug == error.slug
                continue
            assert files["verified"]
            there = glu_ckpt.open(tmp_path / f"{to}{len(options)}")
            made = glu_ckpt.convert_state_dict(state, config=source, **options)
            expect_equal(made, {key: there[key].torch() for key in there})
            assert all(tensor.device.type == device for tensor in made.values())


@pytest.mark.parametrize("device", DEVICES)
def test_a_scale_that_is_nan_is_refused(device):
    shards = glu_ckpt.open(QUANTIZED / "fp8_block128")
    state = {key: shards[key].torch().to(device) for key in shards}
    plan = glu_ckpt.plan_state_dict(state, config=QUANTIZED / "fp8_block128", decode="bf16", force=True)
    name = next(key for key in state if key.endswith("weight_scale_inv"))
    state[name] = state[name].clone()
    state[name].view(-1)[-1] = float("nan")
    with pytest.raises(glu_ckpt.Error, match=f"'{name}': a scale of .* is NaN"):
        plan.run(state)
