"""Whole models: what transformers saves, glu-ckpt converts for Megatron and back, and both must compute the same.

A round trip proves little here: a mapping that is wrong in both directions comes back whole. So Megatron's own
GPTModel, made from nothing but the argument file, loads the checkpoint, and its logits are compared with those of
transformers; deliberately wrong checkpoints show that they tell right from wrong. One process judges all of a run, see
gpt_judge.py: most of its time goes into imports.
"""

import os
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file

import gpt_judge
import tiny_models
from glu_program import Program, assert_same, load_safetensors, need
from tiny_models import FAMILIES

# Not part of the model, and a user's all the same.
TOKENIZER = {"tokenizer.json": b'{"version": "1.0"}\n', "tokenizer_config.json": b"{}"}


# Wrong in ways that keep every key and shape.


def regroup(tensor, groups, sizes, order):
    """Rows lie in groups, each of parts of these sizes: puts the parts in another order."""
    parts = tensor.reshape(groups, sum(sizes), *tensor.shape[1:]).split(sizes, 1)
    return torch.cat([parts[i] for i in order], 1).reshape(tensor.shape).contiguous()


def queries_then_keys_then_values(name, tensor):
    """Not by group: two groups, each of two heads of queries, one of keys, one of values."""
    if not name.endswith("linear_qkv.weight"):
        return tensor
    parts = tensor.reshape(2, 4, -1, *tensor.shape[1:])
    return torch.cat([parts[:, :2].flatten(0, 2), parts[:, 2].flatten(0, 1), parts[:, 3].flatten(0, 1)])


def head_by_head_gates(name, tensor):
    """A head's gates after its queries, as in transformers, and not after all queries of the group."""
    if not name.endswith("linear_qkv.weight"):
        return tensor
    return regroup(tensor, 2, [tensor.shape[0] // 12] * 6, [0, 2, 1, 3, 4, 5])


def gate_and_up_exchanged(name, tensor):
    if not name.endswith("experts.linear_fc1.weight"):
        return tensor
    return torch.cat(tensor.chunk(2, 1)[::-1], 1)


def shared_gate_and_up_exchanged(name, tensor):
    return torch.cat(tensor.chunk(2)[::-1]) if name.endswith("shared_experts.linear_fc1.weight") else tensor


def experts_turned(name, tensor):
    return tensor.roll(1, 0) if ".experts.experts." in name else tensor


def norms_of_heads_exchanged(name, tensor):
    return tensor.roll(32) if name.endswith("q_layernorm.weight") else tensor


def norm_left_as_it_was(name, tensor):
    return tensor + 1 if name.endswith("out_norm.weight") else tensor


def value_heads_exchanged(name, tensor):
    return tensor.flip(0) if name.endswith("in_proj.weight.beta") else tensor


def latents_exchanged(name, tensor):
    return tensor.roll(8, 0) if name.endswith("linear_kv_down_proj.weight") else tensor


def mtp_halves_exchanged(name, tensor):
    return torch.cat(tensor.chunk(2, 1)[::-1], 1) if name.endswith("eh_proj.weight") else tensor


def indexer_heads_turned(name, tensor):
    return tensor.roll(16, 0) if name.endswith("indexer.linear_wq_b.weight") else tensor


def gates_turned(name, tensor):
    return tensor.roll(1, 0) if name.endswith("in_proj.weight.z") else tensor


def states_turned(name, tensor):
    return tensor.roll(1, 0) if name.endswith("conv1d.weight.B") else tensor


def heads_of_mamba_turned(name, tensor):
    return tensor.roll(1, 0) if name.endswith("mixer.A_log") else tensor


CONTROLS = [
    ("qwen3_moe", queries_then_keys_then_values),
    ("qwen3_moe", gate_and_up_exchanged),
    ("qwen3_moe", experts_turned),
    ("qwen2_moe", shared_gate_and_up_exchanged),
    ("gpt_oss", queries_then_keys_then_values),
    ("gpt_oss", gate_and_up_exchanged),
    ("deepseek_v3", latents_exchanged),
    ("deepseek_v3", experts_turned),
    ("glm_moe_dsa", indexer_heads_turned),
    ("deepseek_v32", indexer_heads_turned),
    ("deepseek_v3_mtp", mtp_halves_exchanged),
    ("qwen3_next_mtp", mtp_halves_exchanged),
    ("minimax_m2", norms_of_heads_exchanged),
    ("qwen3_next", norm_left_as_it_was),
    ("qwen3_next", head_by_head_gates),
    ("qwen3_5_moe_text", value_heads_exchanged),
    ("nemotron_h", gates_turned),
    ("nemotron_h", states_turned),
    ("nemotron_h", heads_of_mamba_turned),
    ("nemotron_h", queries_then_keys_then_values),
    ("nemotron_h_latent", experts_turned),
    ("nemotron_h_mtp", mtp_halves_exchanged),
]


# What several tests look at, made once.


def attempt(action):
    """The result, or what was raised: one family's failure must not take the others with it."""
    try:
        return action()
    except (Exception, AssertionError) as error:
        return error


def result_of(attempted):
    if isinstance(attempted, BaseException):
        raise attempted
    return attempted


class Models:
    """Per family: a model, its saved directory, Megatron's form of that, and the way back."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "out").mkdir()
        self.program = Program(os.environ["GLU_CKPT"], folder / "out")
        self.made = {}

    def _once(self, key, action):
        if key not in self.made:
            self.made[key] = attempt(action)
        return result_of(self.made[key])

    def _save(self, family, dtype):
        path = self.folder / f"{family}-{str(dtype).removeprefix('torch.')}"
        # In float32 one file, in bfloat16 several.
        model = tiny_models.save(family, path, dtype, "50MB" if dtype == torch.float32 else "200KB")
        for name, content in TOKENIZER.items():
            (path / name).write_bytes(content)
        return model, path

    def source(self, family, dtype=torch.float32):
        return self._once(("save", family, dtype), lambda: self._save(family, dtype))

    def megatron(self, family, dtype=torch.float32):
        source = self.source(family, dtype)[1]
        return self._once(("megatron", family, dtype), lambda: self.program.convert(source, "--to", "megatron"))

    def back(self, family, dtype=torch.float32):
        there = self.megatron(family, dtype)
        return self._once(("hf", family, dtype), lambda: self.program.convert(there, "--to", "hf"))

    def digest(self, path):
        return self._once(("digest", path), lambda: self.program.digest(path))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("whole"))


def read_torch_dist(release):
    """All tensors, as PyTorch reads them."""
    entries = dcp.FileSystemReader(release).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if hasattr(entry, "properties")
    }
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(release), no_dist=True)
    return tensors


def write_wrong(source, target, change):
    """The same checkpoint with changed tensors, and without Megatron's `_extra_state` entries."""
    target.mkdir()
    tensors = read_torch_dist(source)
    changed = {name: change(name, tensor) for name, tensor in tensors.items()}
    assert any(not torch.equal(changed[name], tensors[name]) for name in tensors)
    dcp.save(changed, storage_writer=dcp.FileSystemWriter(target), no_dist=True)
    for name in ("metadata.json", "common.pt"):
        (target / name).write_bytes((source / name).read_bytes())
    return target


@pytest.fixture(scope="module")
def judged(request, models):
    """What Megatron found in each converted model and each wrong one that some selected test is about."""
    need("megatron-core")
    folder = models.folder / "judge"
    folder.mkdir()
    wanted = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    jobs, found = [], {}

    def add(name, family, checkpoint, **more):
        text = (models.megatron(family) / "megatron_args.txt").read_text()
        arguments = tiny_models.judged_arguments(family, text)
        output = folder / f"{name}.safetensors"
        jobs.append({
            "name": name, "checkpoint": str(checkpoint), "arguments": arguments, "output": str(output),
            "ids": tiny_models.token_ids().tolist(), "wide_norms": FAMILIES[family].wide_norms,
        } | more)  # fmt: skip

    def prepare(family, control):
        release = models.megatron(family) / "release"
        if control is None:
            add(family, family, release, tracker=True)
        else:
            name = f"{family}-{control.__name__}"
            add(name, family, write_wrong(release, folder / name, control), plain=True)

    families = [family for family in FAMILIES if any(family == params.get("family") for params in wanted)]
    for family, control in [(family, None) for family in families] + CONTROLS:
        if family in families:
            problem = attempt(lambda: prepare(family, control))
            found[family if control is None else f"{family}-{control.__name__}"] = problem
    said = gpt_judge.run(folder, jobs)
    for job in jobs:
        found[job["name"]] = said[job["name"]] | {"output": job["output"]}
    return found


def finding(judged, name):
    found = result_of(judged[name])
    assert "error" not in found, found["error"]
    return found


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request):
    return request.param


# Megatron.


def test_megatron_finds_every_key_and_shape(judged, family):
    found = finding(judged, family)
    # Megatron has no bias for the choice after a softmax; loading leaves such a key alone.
    surplus = [name for name in found["unexpected"] if family != "ernie4_5_moe" or not name.endswith("expert_bias")]
    assert (found["missing"], surplus, found["shapes"]) == ([], [], {})
    assert found["missing_extra_states"] == []


def test_the_checkpoint_says_that_its_layers_have_keys_of_their_own(judged, family):
    content = finding(judged, family)["content_metadata"]
    assert content == {"singleton_local_shards": False, "non_homogeneous_layers": True}


def test_megatron_computes_what_transformers_computes(judged, models, family):
    got = load_file(finding(judged, family)["output"])["logits"]
    want = tiny_models.logits(models.source(family)[0])
    assert got.shape == want.shape
    assert (got - want).abs().max() <= tiny_models.TOLERANCE


@pytest.mark.parametrize("family", [name for name in FAMILIES if FAMILIES[name].mtp])
def test_the_layer_of_mtp_computes_its_part(judged, models, family):
    got = load_file(finding(judged, family)["output"])["mtp_logits"]
    want = tiny_models.mtp_logits(models.source(family)[1])
    assert (got - want).abs().max() <= tiny_models.TOLERANCE


@pytest.mark.parametrize(("family", "control"), CONTROLS, ids=[f"{name}-{wrong.__name__}" for name, wrong in CONTROLS])
def test_a_wrong_checkpoint_is_seen(judged, family, control):
    found = finding(judged, f"{family}-{control.__name__}")
    finding(judged, family)
    assert (found["missing"], found["shapes"]) == ([], {})
    got, right = (load_file(judged[name]["output"]) for name in (f"{family}-{control.__name__}", family))
    assert max((got[name] - right[name]).abs().max() for name in right) > 0.01


def test_kimi_k2_is_deepseek_v3_by_another_name(models, tmp_path):
    """transformers has no class for Kimi-K2, whose layers are DeepSeek-V3's. Those tensors under its type give the same
    checkpoint, of which the logits are compared above."""
    source, there = models.source("deepseek_v3")[1], models.megatron("deepseek_v3", torch.float32)
    kimi = tmp_path / "kimi"
    shutil.copytree(source, kimi)
    config = (kimi / "config.json").read_text()
    assert '"model_type": "deepseek_v3"' in config
    (kimi / "config.json").write_text(config.replace('"model_type": "deepseek_v3"', '"model_type": "kimi_k2"'))
    out = models.program.convert(kimi, "--to", "megatron")
    assert_same(read_torch_dist(out / "release"), read_torch_dist(there / "release"))
    assert (out / "megatron_args.txt").read_bytes() == (there / "megatron_args.txt").read_bytes()
    back = models.program.convert(out, "--to", "hf")
    assert_same(load_safetensors(back), load_safetensors(source))
    assert (back / "config.json").read_bytes() == (kimi / "config.json").read_bytes()


def test_the_directory_is_as_megatron_looks_for_it(models, family, dtype):
    path = models.megatron(family, dtype)
    assert (path / "latest_checkpointed_iteration.txt").read_text().strip() == "release"
    lines = (path / "megatron_args.txt").read_text().splitlines()
    assert lines and all(line.startswith("--") and len(line.split()) <= 2 for line in lines)
    assert ("--bf16" in lines) == (dtype == torch.bfloat16)
    assert not list(path.glob("*.safetensors")) and not (path / "config.json").exists()
    source = models.source(family, dtype)[1]
    for name in ["config.json", "generation_config.json", *TOKENIZER]:
        assert (path / "hf" / name).read_bytes() == (source / name).read_bytes(), name


def test_no_dtype_changes(models, family):
    float32 = {
        name
        for name, tensor in read_torch_dist(models.megatron(family, torch.bfloat16) / "release").items()
        if tensor.dtype != torch.bfloat16
    }
    # The norm as Megatron stores it is exact in float32 alone.
    tails = ("router.expert_bias", "A_log", "out_norm.weight")
    # transformers keeps the routers of some families in float32.
    source = load_safetensors(models.source(family, torch.bfloat16)[1])
    if any(name.endswith(("mlp.gate.weight", "mlp.router.gate.weight", "mixer.gate.weight")) and tensor.dtype == torch.float32 for name, tensor in source.items()):
        tails += ("router.weight",)
    assert all(name.endswith(tails) for name in float32)


# And back.


def test_every_byte_comes_back(models, family, dtype):
    source, back = models.source(family, dtype)[1], models.back(family, dtype)
    assert_same(load_safetensors(back), load_safetensors(source))
    for name in ["config.json", "generation_config.json", *TOKENIZER]:
        assert (back / name).read_bytes() == (source / name).read_bytes(), name


def test_one_digest_in_all_forms(models, family, dtype):
    source, there, back = models.source(family, dtype)[1], models.megatron(family, dtype), models.back(family, dtype)
    assert models.digest(there) == models.digest(back) == models.digest(source)
    models.program.run("verify", source, there)


def test_transformers_loads_what_came_back(models, family):
    def load(path):
        model = transformers.AutoModelForCausalLM
        return model.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)

    model, _ = models.source(family)
    again, info = load(models.back(family))
    # Layers of MTP are unexpected in the source too.
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert bool(info["unexpected_keys"]) == tiny_models.has_unexpected(family)
    assert torch.equal(tiny_models.logits(again.eval()), tiny_models.logits(model))
