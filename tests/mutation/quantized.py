"""Which tensors a quantized weight is made of, by its quantization_config: names, dtypes, shapes."""
import math
import re
import struct

from checkpoint import Broken, Tensor, Unclear
from models import FLOATS

ANY_SCALE = ("F32", "BF16", "F16")
TAILS = ("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv",
         "weight_shape", "weight_zero_point", "input_scale")  # fmt: skip
BLOCKS = re.compile(r"^(.*)_(blocks|scales)$")


def number(fields, name):
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise Unclear(f"{name} of the quantization is {value!r}")
    return value


def weights_of(quant):
    groups = quant.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1 or not isinstance(next(iter(groups.values())), dict):
        raise Unclear("several groups of modules")
    weights = next(iter(groups.values())).get("weights")
    if not isinstance(weights, dict):
        raise Unclear("groups that say nothing of weights")
    return weights


def parts_of(quant, o, i):
    """The parts of an [o, i] weight, each with its dtypes and shape."""
    method = quant.get("quant_method")
    if method in ("awq", "gptq"):
        per, group = 32 // number(quant, "bits"), number(quant, "group_size")
        if number(quant, "bits") != 4:
            raise Unclear("not four bits")
        groups = -(-i // group)
        parts = {"qzeros": (["I32"], [groups, o // per]), "scales": (ANY_SCALE, [groups, o])}
        if method == "awq":
            return parts | {"qweight": (["I32"], [i, o // per])}
        return parts | {"qweight": (["I32"], [i // per, o]), "g_idx": (["I32"], [i])}
    if method == "fp8":
        block = quant.get("weight_block_size")
        if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
            raise Unclear("another block")
        grid = [-(-o // block[0]), -(-i // block[1])]
        return {"weight": (["F8_E4M3"], [o, i]), "weight_scale_inv": (ANY_SCALE, grid)}
    if method == "modelopt" and quant.get("quant_algo") == "NVFP4":
        return {"weight": (["U8"], [o, i // 2]), "weight_scale": (["F8_E4M3"], [o, i // 16]), "weight_scale_2": (["F32"], []),
                "input_scale": (["F32"], [])}  # fmt: skip
    if method == "compressed-tensors":
        weights = weights_of(quant)
        if quant.get("format") == "float-quantized" and weights.get("strategy") in ("channel", "tensor"):
            scale = [o, 1] if weights["strategy"] == "channel" else [1]
            parts = {"weight": (["F8_E4M3"], [o, i]), "weight_scale": (ANY_SCALE, scale)}
            return parts | ({"input_scale": (ANY_SCALE, [1])} if scale == [1] else {})
        if quant.get("format") == "pack-quantized" and weights.get("num_bits") == 4 and weights.get("strategy") == "group":
            groups = -(-i // number(weights, "group_size"))
            parts = {"weight_packed": (["I32"], [o, i // 8]), "weight_scale": (ANY_SCALE, [o, groups]), "weight_shape": (["I64"], [2])}
            return parts if weights.get("symmetric") else parts | {"weight_zero_point": (["I32"], [o // 8, groups])}
    raise Unclear("another method of quantization")


def is_stale(tensors, config):
    """A quantization_config, and no tensor that could be codes or scales."""
    return isinstance(config.get("quantization_config"), dict) and not any(
        tensor.dtype not in (*FLOATS, "F64") or name.rpartition(".")[2] in TAILS or BLOCKS.match(name)
        for name, tensor in tensors.items())  # fmt: skip


# What the parts of a weight say without a quantization_config. AWQ's and GPTQ's do not tell which of the two they are.
SELF_EVIDENT = [
    {"quant_method": "mxfp4"},
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    *({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"0": {"weights": {"strategy": strategy}}}}
      for strategy in ("channel", "tensor")),
    *({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"0": {"weights": {
        "num_bits": 4, "strategy": "group", "group_size": size, "symmetric": symmetric}}}}
      for size in (16, 32, 64, 128) for symmetric in (True, False)),
]  # fmt: skip


def check(name, parts, shape, quant):
    """Raises Broken where the parts are not those of such a weight in the format."""
    if shape is None or len(shape) != (3 if quant.get("quant_method") == "mxfp4" else 2):
        raise Broken(f"{name}: quantized, and no matrix of the model")
    if quant.get("quant_method") == "mxfp4":
        e, i, o = shape
        right = {"blocks": (["U8"], [e, o, i // 32, 16]), "scales": (["U8", "F8_E8M0"], [e, o, i // 32])}
    else:
        right = parts_of(quant, *shape)
    if "weight" in parts and parts["weight"].dtype == "I8":
        raise Unclear("INT8, in blocks too, which checkpoints have that are not here")
    if "weight" in parts and parts["weight"].dtype in FLOATS:
        raise Broken(f"{name}: a plain weight with parts of a quantized one")
    # The shape is also that of the codes, which have no padding here.
    if lost := right.keys() - parts.keys() - {"input_scale", "weight_shape"}:
        raise Broken(f"{name}: no {min(lost)}")
    for part, tensor in parts.items():
        if part not in right:
            raise Broken(f"{name}: {part} beside it")
        if tensor.dtype not in right[part][0] or list(tensor.shape) != right[part][1]:
            if part == "input_scale" or (list(tensor.shape) in ([], [1], [1, 1]) and right[part][1] in ([], [1], [1, 1])):
                raise Unclear("another shape of one number")
            raise Broken(f"{name}: {part} is {tensor.dtype} {tensor.shape}, right is {right[part]}")
    if "weight_shape" in parts and list(struct.unpack("<2q", parts["weight_shape"].data)) != list(shape):
        raise Broken(f"{name}: weight_shape is another")


def check_without_config(name, parts, shape):
    faults = []
    for quant in SELF_EVIDENT:
        try:
            return check(name, parts, shape, quant)
        except Broken as fault:
            faults.append(fault)
    is_fp8 = "weight" in parts and parts["weight"].dtype == "F8_E4M3"
    if is_fp8 and parts.keys() <= {"weight", "weight_scale", "weight_scale_inv"}:
        if any(part != "weight" and set(tensor.shape) == {1} for part, tensor in parts.items()):
            raise Unclear(f"{name}: one number is the scale of all blocks, whatever they are")
    raise faults[0]


def check_stated(name, parts, shape, quant):
    """The same where a configuration may say what they are. It may be about other weights: then parts decide."""
    if not quant.get("quant_method"):
        return check_without_config(name, parts, shape)
    try:
        check(name, parts, shape, quant)
    except Broken as fault:
        is_about_others = is_evident(name, parts, shape) and not has_words_of(quant, parts)
        raise Unclear("parts of another method than the configuration's") if is_about_others else fault


def is_evident(name, parts, shape):
    try:
        check_without_config(name, parts, shape)
        return True
    except Broken:
        return False


def has_words_of(quant, parts):
    """Whether the names of the parts are those of the method."""
    words = {"mxfp4": {"blocks", "scales"}, "fp8": {"weight", "weight_scale_inv"}, "awq": {"qweight"}, "gptq": {"qweight"},
             "modelopt": {"weight", "weight_scale"}, "compressed-tensors": {"weight_packed", "weight_scale"}}  # fmt: skip
    method = quant["quant_method"]
    return method in words and bool(words[method] & parts.keys() - {"weight"})


def logical(tensors, config, wanted):
    """The tensors with each quantized weight as one BF16 tensor without data; `wanted` says the shapes of weights."""
    quant, out, modules = config.get("quantization_config"), {}, {}
    for name, tensor in tensors.items():
        root, _, tail = name.rpartition(".")
        if (block := BLOCKS.match(name)) and "experts." in name:
            modules.setdefault(block[1], {})[block[2]] = tensor
        elif tail in TAILS or (tail == "weight" and tensor.dtype in ("U8", "I8", "F8_E4M3")):
            modules.setdefault(f"{root}.weight", {})[tail] = tensor
        elif tail == "weight" and tensor.dtype == "F8_E5M2":
            raise Unclear(f"{name}: codes of another FP8, which decode as well")
        else:
            out[name] = tensor
    if quant is not None and not isinstance(quant, dict):
        raise Broken("quantization_config is no object")
    if quant and not isinstance(quant.get("quant_method") or "", str):
        raise Broken("quant_method is no text")
    for name, parts in modules.items():
        shape = wanted.get(name)
        check_stated(name, parts, shape, quant or {})
        out[name] = Tensor("BF16", list(shape), b"")
    return out
