"""Quantized experts, moved as they are: where PyTorch's slicing says that each code and scale belongs."""

import json
import os
import pathlib
import re
import shutil

import pytest
import torch

from glu_program import load_safetensors
from safetensors.torch import save_file

FIXTURES = pathlib.Path(os.environ.get("GLU_CKPT_TESTDATA", pathlib.Path(__file__).parents[2] / "testdata")) / "quantized"

# For each word of a key: the axis along which the rows of the weight lie, and how many rows an element is for; None
# where there is one for the matrix, COLUMNS where there is one for each column of it.
COLUMNS = (None, 1)
# The same where up's stand behind gate's, and not beside them.
COLUMNS_BEHIND = (None, 0)
WORDS = {
    "awq_int4": {"qweight": (1, 8), "qzeros": (1, 8), "scales": (1, 1)},
    "ct_int4_g32": {"weight_packed": (0, 1), "weight_scale": (0, 1), "weight_shape": None},
    "ct_int4_asym": {"weight_packed": (0, 1), "weight_scale": (0, 1), "weight_shape": None, "weight_zero_point": (0, 8)},
    "fp8_block128": {"weight": (0, 1), "weight_scale_inv": (0, 128)},
    "fp8_channel": {"weight": (0, 1), "weight_scale": (0, 1)},
    "fp8_per_tensor": {"weight": (0, 1), "weight_scale": None, "input_scale": None},
    "gptq_int4": {"qweight": (1, 1), "qzeros": (1, 8), "scales": (1, 1), "g_idx": COLUMNS},
    "nvfp4_modelopt": {"weight": (0, 1), "weight_scale": (0, 1), "weight_scale_2": None, "input_scale": None},
    # Made of the fixtures above, by checkpoint().
    "ct_int4_reordered": {"weight_packed": (0, 1), "weight_scale": (0, 1), "weight_shape": None,
                          "weight_zero_point": (0, 8), "weight_g_idx": COLUMNS_BEHIND},
    "fp8_block128_modelopt": {"weight": (0, 1), "weight_scale": (0, 128)},
    "fp8_block128_ct": {"weight": (0, 1), "weight_scale": (0, 128)},
}
NAMES = {"fp8_per_tensor": ("w1", "w3", "w2", "w13")}
SUFFIXES = {"weight": "", "weight_scale": "_scale", "weight_scale_inv": "_scale_inv", "weight_scale_2": "_scale_2",
            "weight_packed": "_packed", "weight_shape": "_shape", "weight_zero_point": "_zero_point"}


def checkpoint(kind, path):
    """The fixture without its decoder's answers."""
    of_fixture = {"ct_int4_reordered": "ct_int4_asym", "fp8_block128_modelopt": "fp8_block128",
                  "fp8_block128_ct": "fp8_block128"}.get(kind, kind)
    shutil.copytree(FIXTURES / of_fixture, path, ignore=shutil.ignore_patterns("decoded*"))
    if of_fixture != kind:
        rewrite(kind, path)
    return path


def rewrite(kind, path):
    """Tensors and configuration as another writer, or another recipe of the same, has them."""
    tensors = {}
    for name, tensor in load_safetensors(path).items():
        if kind == "ct_int4_reordered" and name.endswith(".weight_packed"):
            # gate and up of an expert have one activation, and so one order of columns.
            layer, expert = (int(number) for number in re.findall(r"\.(\d+)\.", name)[:2])
            groups = groups_of_reordered(tensor.shape[1] * 8, 8 * layer + expert)
            tensors[name.replace("weight_packed", "weight_g_idx")] = groups
        if kind.startswith("fp8_block128") and name.endswith("_scale_inv"):
            name = name.removesuffix("_inv")
            tensor = tensor.reshape(tensor.shape[0], 1, -1, 1) if kind.endswith("modelopt") else tensor
        tensors[name] = tensor.contiguous()
    for file in path.glob("model*"):
        file.unlink()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    if kind == "fp8_block128_modelopt":
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}
    if kind == "fp8_block128_ct":
        weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
        config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "float-quantized",
                                         "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    (path / "config.json").write_text(json.dumps(config, indent=2))


def groups_of_reordered(cols, seed):
    """The group of 32 of each column, for columns that were put in another order."""
    order = torch.tensor([(col * 5 + seed) % cols for col in range(cols)])
    return (order // 32).to(torch.int32)


def raw(tensor):
    """dtype, shape and bytes."""
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def differing(got, expected):
    return sorted(name for name in set(got) | set(expected)
                  if name not in got or name not in expected or raw(got[name]) != raw(expected[name]))


def interleaved(gate, up, axis, rows):
    """Blocks of `rows` of gate and up, in turns."""
    pieces = [piece for pair in zip(gate.split(rows, axis), up.split(rows, axis)) for piece in pair]
    return torch.cat(pieces, axis)


def fused(gate, up, place, block_rows):
    if place is None:
        return torch.stack([gate, up])
    if place[0] is None:
        return torch.stack([gate, up], place[1])
    axis, covered = place
    return interleaved(gate, up, axis, (block_rows or gate.shape[axis] * covered) // covered)


def moved(tensors, words, names, block_rows, grouped):
    """The checkpoint with FC1 fused: contiguous, or in blocks of `block_rows` rows."""
    gate_name, up_name, down_name, fused_name = names
    result, stacks = {}, {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*\.experts\.)(\d+)\.(\w+)\.(\w+)", name)
        if not found or found[4] not in words:
            result[name] = tensor
            continue
        prefix, expert, part, word = found[1], int(found[2]), found[3], found[4]
        if part == up_name:
            continue
        if part == gate_name:
            part = fused_name
            tensor = fused(tensor, tensors[f"{prefix}{expert}.{up_name}.{word}"], words[word], block_rows)
        if grouped:
            stacks.setdefault(f"{prefix}{part}{SUFFIXES.get(word, '_' + word)}", {})[expert] = tensor
        else:
            result[f"{prefix}{expert}.{part}.{word}"] = tensor
    for name, stack in stacks.items():
        result[name] = torch.stack([stack[expert] for expert in range(len(stack))])
    return result


def without_shared(tensors):
    return {name: tensor for name, tensor in tensors.items() if ".shared_expert" not in name}


# Blocks of FP8 that an order would cut get more scales: test_scales_for_smaller_blocks.
CASES = [(kind, block_rows) for kind in WORDS for block_rows in (None, 32, 4)
         if not kind.startswith("fp8_block128") or not block_rows]


@pytest.mark.parametrize("grouped", [False, True], ids=["indexed", "grouped"])
@pytest.mark.parametrize("kind, block_rows", CASES)
def test_fused_and_back(glu, tmp_path, kind, block_rows, grouped):
    source = checkpoint(kind, tmp_path / "source")
    tensors = load_safetensors(source)
    words = WORDS[kind]
    order = f"interleaved:{block_rows}" if block_rows else "contiguous"
    # Software that reads packed experts expects the contiguous order there.
    options = ("--glu", order, "--experts", "grouped" if grouped else "indexed", "--allow-foreign-order")
    covered = max(place[1] for place in words.values() if place)
    if block_rows and block_rows % covered:
        refused = glu.run("convert", source, glu.fresh(), "-q", *options, status=4)
        assert f"must be a multiple of {covered}" in refused.stderr and "--decode bf16" in refused.stderr
        return
    out = glu.convert(source, *options)
    expected = moved(tensors, words, NAMES.get(kind, ("gate_proj", "up_proj", "down_proj", "gate_up_proj")), block_rows,
                     grouped)
    assert not differing(without_shared(load_safetensors(out)), without_shared(expected))
    assert glu.digest(out) == glu.digest(source)
    glu.run("verify", source, out)
    back = glu.convert(out, "--glu", "split", "--experts", "indexed")
    assert not differing(load_safetensors(back), tensors)


@pytest.mark.parametrize("order", ["contiguous", "interleaved:32", "split"])
def test_gpt_oss(glu, tmp_path, order):
    source = checkpoint("mxfp4_gpt_oss", tmp_path / "source")
    tensors = load_safetensors(source)
    out = glu.convert(source, "--glu", order, "--allow-foreign-order")
    expected = dict(tensors)
    for name in [name for name in tensors if ".experts.gate_up_proj_" in name]:
        gate, up = tensors[name][:, 0::2], tensors[name][:, 1::2]
        if order == "split":
            del expected[name]
            expected[name.replace("gate_up_proj", "gate_proj")] = gate
            expected[name.replace("gate_up_proj", "up_proj")] = up
        else:
            expected[name] = interleaved(gate, up, 1, gate.shape[1] if order == "contiguous" else 32)
    assert not differing(load_safetensors(out), expected)
    glu.run("verify", source, out)
    assert not differing(load_safetensors(glu.convert(out, "--glu", "interleaved:1", "--experts", "grouped")), tensors)


def test_gpt_oss_one_tensor_for_each_expert(glu, tmp_path):
    source = checkpoint("mxfp4_gpt_oss", tmp_path / "source")
    tensors = load_safetensors(source)
    out = load_safetensors(glu.convert(source, "--experts", "indexed", "--allow-foreign-order"))
    codes = "model.layers.1.mlp.experts.{}down_proj_blocks"
    for expert in range(4):
        assert raw(out[codes.format(f"{expert}.")]) == raw(tensors[codes.format("")][expert])


def swap_bytes(path, name, first, second):
    """Exchanges two ranges of a tensor's bytes in whichever shard has it."""
    for file in sorted(path.glob("model*.safetensors")):
        data = bytearray(file.read_bytes())
        length = int.from_bytes(data[:8], "little")
        entry = json.loads(data[8:8 + length]).get(name)
        if entry is None:
            continue
        start = 8 + length + entry["data_offsets"][0]
        a, b = (slice(start + at.start, start + at.stop) for at in (first, second))
        data[a], data[b] = data[b], data[a]
        file.write_bytes(data)
        return
    raise AssertionError(f"no {name}")


@pytest.mark.parametrize("kind, name, size, says", [
    ("nvfp4_modelopt", "model.layers.1.mlp.experts.gate_up_proj_scale_2", 8, "second scale"),
    ("nvfp4_modelopt", "model.layers.0.mlp.experts.gate_up_proj_scale", 4, "scale"),
    ("fp8_per_tensor", "model.layers.1.block_sparse_moe.experts.w13_scale", 2, "scale"),
    ("ct_int4_g32", "model.layers.1.mlp.experts.down_proj_packed", 8, "weight"),
    ("awq_int4", "model.layers.1.mlp.experts.gate_up_proj_qzeros", 4, "zero point"),
])
def test_exchanged_codes_and_scales_are_found(glu, tmp_path, kind, name, size, says):
    source = checkpoint(kind, tmp_path / "source")
    out = glu.convert(source, "--glu", "contiguous", "--experts", "grouped")
    swap_bytes(out, name, slice(0, size), slice(size, 2 * size))
    found = glu.run("verify", source, out, status=1)
    layer = re.search(r"layers\.(\d+)", name)[1]
    assert f"layer {layer}, routed expert 0" in found.stdout and says in found.stdout
    assert "they have changed since it was written" in glu.run("digest", out, status=3).stderr


@pytest.mark.parametrize("target", ["megatron-dist", "hf:gpt_oss"])
@pytest.mark.parametrize("kind", ["awq_int4", "ct_int4_g32", "fp8_channel", "nvfp4_modelopt"])
def test_namings_without_a_place_for_codes(glu, tmp_path, kind, target):
    """Megatron holds none; gpt-oss's experts are transposed."""
    source = checkpoint(kind, tmp_path / "source")
    out = glu.fresh()
    done = glu.run("convert", source, out, "-q", "--naming", target, "--scope", "experts", "--unknown", "keep", "--glu",
                   "interleaved:32", status=None)
    if done.returncode == 0:  # rows and channels can be transposed, and packed codes keep their own axes
        assert target == "hf:gpt_oss" and kind != "nvfp4_modelopt"
        glu.run("verify", source, out)
    else:
        assert done.returncode == 4 and "--decode bf16" in done.stderr and not out.exists()


def blocks_repeated(scales, rows, block_rows, finer):
    """A scale for each `finer` rows of a weight, where there was one for `block_rows`."""
    return torch.stack([scales[at // block_rows] for at in range(0, rows, finer)])


def test_finer_scales_are_said_to_compressed_tensors(glu, tmp_path):
    source = checkpoint("fp8_block128_ct", tmp_path / "source")
    out = glu.convert(source, "--glu", "interleaved:32", "--experts", "grouped", "--allow-foreign-order")
    weights = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]["weights"]
    assert weights["block_structure"] == [32, 128]
    assert "equal" in glu.run("verify", source, out).stdout
    assert glu.digest(out, "--decode", "bf16") == glu.digest(source, "--decode", "bf16")


def test_finer_scales_of_modelopt_have_no_place(glu, tmp_path):
    source = checkpoint("fp8_block128_modelopt", tmp_path / "source")
    refused = glu.run("convert", source, glu.fresh(), "-q", "--glu", "interleaved:32", "--experts", "grouped",
                      "--allow-foreign-order", status=4)
    assert "has no field for the rows of a block" in refused.stderr


@pytest.mark.parametrize("block_rows", [32, 64, 8])
def test_scales_for_smaller_blocks(glu, tmp_path, block_rows):
    source = checkpoint("fp8_block128", tmp_path / "source")
    tensors = load_safetensors(source)
    options = ("--glu", f"interleaved:{block_rows}", "--experts", "grouped", "--allow-foreign-order")
    out = glu.fresh()
    said = glu.run("convert", source, out, *options)
    assert f"blocks of {block_rows} rows" in said.stderr
    finer = {name: blocks_repeated(tensor, tensors[name.removesuffix("_scale_inv")].shape[0], 128, block_rows)
             if name.endswith("_scale_inv") else tensor for name, tensor in tensors.items()}
    words = {"weight": (0, 1), "weight_scale_inv": (0, block_rows)}
    expected = moved(finer, words, ("gate_proj", "up_proj", "down_proj", "gate_up_proj"), block_rows, True)
    assert not differing(load_safetensors(out), expected)
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == [block_rows, 128]
    original = json.loads((source / "config.json").read_text())
    original["quantization_config"]["weight_block_size"] = [block_rows, 128]
    assert config == original
    assert "equal" in glu.run("verify", source, out).stdout and "equal" in glu.run("verify", out, source).stdout
    assert glu.run("diff", source, out).returncode == 0
    for dtype in ("bf16", "f32"):
        back = glu.convert(out, "--glu", "split", "--experts", "indexed")
        assert glu.digest(back, "--decode", dtype) == glu.digest(source, "--decode", dtype)


def test_an_exchanged_scale_of_smaller_blocks_is_found(glu, tmp_path):
    source = checkpoint("fp8_block128", tmp_path / "source")
    out = glu.convert(source, "--glu", "interleaved:32", "--experts", "grouped", "--allow-foreign-order")
    # Rows 96 to 127 of the gate and of up: neighbours of one block of the source.
    swap_bytes(out, "model.layers.1.mlp.experts.gate_up_proj_scale_inv", slice(6 * 8, 7 * 8), slice(7 * 8, 8 * 8))
    found = glu.run("verify", source, out, status=1)
    assert "layer 1, routed expert 0, gate scale" in found.stdout


def mx_expected(tensors):
    """Every scale as its exponent, once for each row and each 32 columns."""
    result = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            rows, cols = tensors[name.removesuffix("_scale_inv")].shape
            exponents = (tensor.view(torch.int32) >> 23).to(torch.uint8)
            tensor = exponents.repeat_interleave(128, 0)[:rows].repeat_interleave(4, 1)[:, :cols // 32]
        result[name] = tensor
    return result


def test_powers_of_two_become_mxfp8(glu, tmp_path):
    source = checkpoint("fp8_block128_ue8m0", tmp_path / "source")
    tensors = load_safetensors(source)
    out = glu.convert(source, "--encode", "mxfp8")
    assert not differing(load_safetensors(out), mx_expected(tensors))
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "mxfp8" and config["weight_block_size"] == [1, 32]
    glu.run("verify", source, out, "--encode", "mxfp8")
    assert glu.digest(out, "--decode", "f32") == glu.digest(source, "--decode", "f32")
    fused = glu.convert(source, "--encode", "mxfp8", "--glu", "interleaved:32", "--experts", "grouped",
                        "--allow-foreign-order")
    glu.run("verify", out, fused)
    assert json.loads((fused / "glu_ckpt.json").read_text())["encoded_as"] == "mxfp8"


def write_tensors(path, tensors, config):
    """A checkpoint of one file; tensors are (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.mkdir()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_mxfp4_becomes_mxfp8(glu, tmp_path):
    """Every code and every exponent but NaN's."""
    tensors, codes, scales = {}, {}, {}
    for expert in range(2):
        for part, rows, cols in (("gate_proj", 64, 128), ("up_proj", 64, 128), ("down_proj", 128, 64)):
            name = f"model.layers.0.mlp.experts.{expert}.{part}"
            codes[name] = torch.arange(rows * cols // 2, dtype=torch.int64).mul(7).add(expert).to(torch.uint8)
            scales[name] = torch.arange(rows * cols // 32).mul(3).add(expert).remainder(255).to(torch.uint8)
            tensors[name + ".weight_packed"] = ("U8", [rows, cols // 2], codes[name].numpy().tobytes())
            tensors[name + ".weight_scale"] = ("U8", [rows, cols // 32], scales[name].numpy().tobytes())
    config = {"model_type": "qwen3_moe", "num_experts": 2, "quantization_config":
              {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "ignore": ["lm_head"]}}
    source = write_tensors(tmp_path / "source", tensors, config)
    out = glu.convert(source, "--encode", "mxfp8")
    got = load_safetensors(out)
    table = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6]).repeat(2) * torch.tensor([1.0] * 8 + [-1.0] * 8)
    for name, packed in codes.items():
        numbers = table[torch.stack([packed & 15, packed >> 4], 1).reshape(-1).long()]
        weight = got[name + ".weight"]
        assert weight.dtype == torch.float8_e4m3fn
        assert torch.equal(weight.float().reshape(-1), numbers)
        assert torch.equal(torch.signbit(weight.float().reshape(-1)), torch.signbit(numbers))
        assert torch.equal(got[name + ".weight_scale"].reshape(-1), scales[name])
    assert json.loads((out / "config.json").read_text())["quantization_config"]["modules_to_not_convert"] == ["lm_head"]
    glu.run("verify", source, out, "--encode", "mxfp8")
    assert glu.digest(out, "--decode", "f32") == glu.digest(source, "--decode", "f32")


def test_gpt_oss_becomes_blocks_of_mxfp8(glu, tmp_path):
    source = checkpoint("mxfp4_gpt_oss", tmp_path / "source")
    out = glu.convert(source, "--encode", "mxfp8")
    before, after = load_safetensors(source), load_safetensors(out)
    table = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6]).repeat(2) * torch.tensor([1.0] * 8 + [-1.0] * 8)
    names = [name for name in before if name.endswith("_blocks")]
    assert names and before.keys() == after.keys()
    for name in names:
        packed = before[name].long()
        numbers = table[torch.stack([packed & 15, packed >> 4], -1).flatten(-2)]
        assert after[name].dtype == torch.float8_e4m3fn
        assert torch.equal(after[name].float(), numbers)
    for name in before.keys() - set(names):
        assert torch.equal(before[name].contiguous().view(torch.uint8), after[name].contiguous().view(torch.uint8))
    assert glu.digest(out, "--decode", "f32") == glu.digest(source, "--decode", "f32")


@pytest.mark.parametrize("kind, says", [
    ("fp8_block128", "is no power of two"), ("nvfp4_modelopt", "--decode bf16"),
    ("awq_int4", "--decode bf16"), ("ct_int4_g32", "--decode bf16"), ("fp8_channel", "is no power of two"),
])
def test_what_is_no_mxfp8_is_refused(glu, tmp_path, kind, says):
    source = checkpoint(kind, tmp_path / "source")
    out = glu.fresh()
    refused = glu.run("convert", source, out, "--encode", "mxfp8", "-q", status=None)
    assert refused.returncode in (3, 4) and says in refused.stderr and not out.exists(), refused.stderr


def test_decoded_weights_are_encoded(glu, tmp_path):
    source = checkpoint("fp8_block128", tmp_path / "source")
    refused = glu.run("convert", source, glu.fresh(), "--encode", "fp8:channel", status=3)
    assert "--decode bf16 beside it" in refused.stderr, refused.stderr
    both = ("--decode", "bf16", "--encode", "fp8:channel")
    out, numbers = glu.convert(source, *both), glu.convert(source, "--decode", "bf16")
    glu.run("verify", source, out, *both)
    glu.run("verify", numbers, out, "--encode", "fp8:channel")
