"""--dtype: tensors in other dtypes by role or name. The right bits are made here, by Python's own rounding."""
import json
import math
import random
import re
import struct
from fractions import Fraction

from case import TESTDATA, Case, Run, both, config_changed, read_tensors, tensors_changed, write_safetensors

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
ODD = (math.nan, math.inf, -math.inf, 1e38, -1e-42, 65519.0, 65520.0, 1.0009765625, 1 + 2**-8, 1 + 3 * 2**-8, -0.0)


def numbers(dtype: str, data: bytes) -> list[float]:
    if dtype == "F64":
        return list(struct.unpack(f"<{len(data) // 8}d", data))
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


def bits(value: float, dtype: str) -> bytes:
    if dtype == "F32":
        return struct.pack("<f", value)
    if dtype == "F16":
        try:
            return struct.pack("<e", value)
        except OverflowError:
            return struct.pack("<e", math.copysign(math.inf, value))
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    if math.isnan(value):
        return struct.pack("<H", word >> 16 | 0x40)
    code = (word + 0x7FFF + (word >> 16 & 1)) >> 16
    if math.isfinite(value) and code & 0x7FFF not in (0, 0x7F7F, 0x7F80):
        # Rounded at once, not to F32 first; of two that are as near, the even one.
        near = {c: abs(Fraction(numbers("BF16", struct.pack("<H", c))[0]) - Fraction(value)) for c in (code - 1, code, code + 1)}
        code = min(near, key=lambda c: (near[c], c & 1))
    return struct.pack("<H", code)


def cast(tensor, dtype: str):
    old, shape, data = tensor
    if old not in SIZES or old == dtype:
        return tensor
    return dtype, shape, b"".join(bits(value, dtype) for value in numbers(old, data))


def f32_with_odd_numbers(tensors) -> None:
    """All tensors become F32 with low bits, some of them no numbers, too large, subnormal, or between two of bf16."""
    source = random.Random(5)
    for name, (dtype, shape, data) in tensors.items():
        values = [value * (1 + source.random() / 64) for value in numbers(dtype, data)]
        if "down_proj" in name or "router" in name:
            values[: len(ODD)] = ODD
        tensors[name] = "F32", shape, b"".join(struct.pack("<f", value) for value in values)


def f64_beside_middles(tensors) -> None:
    """All tensors become F64: numbers beside the middle of two of bf16, or of F16, by less than F32 has bits for."""
    source = random.Random(6)
    for name, (dtype, shape, data) in tensors.items():
        step = source.choice((2**-8, 2**-11))
        values = [v * (1 + step) * (1 + source.choice((-1, 0, 1)) * 2**-40) for v in numbers(dtype, data)]
        if "down_proj" in name:
            values[:3] = math.nan, -math.inf, -0.0
        tensors[name] = "F64", shape, struct.pack(f"<{len(values)}d", *values)


def casts(rules, changed=None, dtype_word: str = ""):
    """Returns a check that each of OUT's tensors has the dtype of the first rule whose regular expression fits its name,
    and the right bits."""

    def check(out):
        stored = read_tensors(TESTDATA / "whole/qwen3_moe/hf")
        if changed:
            changed(stored)
        have = read_tensors(out)
        for name, tensor in stored.items():
            to = next((dtype for pattern, dtype in rules if re.search(pattern, name)), tensor[0])
            if have[name] != cast(tensor, to):
                return f"{name} is {have[name][0]}, right is {to}, or its bits differ"
        config = json.loads((out / "config.json").read_text())
        word = config.get("dtype", config.get("torch_dtype"))
        return f"config.json says {word}, not {dtype_word}" if dtype_word and word != dtype_word else ""

    return check


def flip(out):
    """One bit of a rounded element."""
    path = next(out.glob("*.safetensors"))
    tensors = read_tensors(path)
    name = next(n for n in tensors if "q_proj" in n)
    dtype, shape, data = tensors[name]
    tensors[name] = dtype, shape, bytes([data[0] ^ 1]) + data[1:]
    write_safetensors(path, tensors)
    (out / "glu_ckpt.json").unlink()
    return ""


F32 = tensors_changed(f32_with_odd_numbers)
NORMS = "--dtype router=f32 norm/*=f32 *=bf16"
NORM_RULES = [(r"mlp\.gate\.|norm", "F32"), ("", "BF16")]
WIDER = "--dtype router=f32 norm/*=f32"


def qwen(runs, note, change=None) -> Case:
    return Case("whole/qwen3_moe", "hf", runs, change=change, note=f"dtypes: {note}")


CASES = [
    qwen([Run(f"convert SRC OUT {WIDER}", says="no element changes", check=casts(NORM_RULES, dtype_word="bfloat16")),
          Run("inspect OUT --strict", plan=False),
          Run(f"verify SRC OUT {WIDER}", plan=False),
          Run("verify SRC OUT", 1, plan=False, says="--dtype 'router=f32,norm/\\*=f32'"),
          Run(f"convert SRC OUT2 {WIDER} --to megatron", says="routers"),
          Run("verify OUT OUT2", plan=False)], "wider"),
    qwen([Run("convert SRC OUT --dtype f32", check=casts([("", "F32")], dtype_word="float32")),
          Run("convert OUT OUT2 --dtype *=bf16", 4, says="--allow-narrowing.*not-exact"),
          Run("convert OUT OUT2 --dtype *=bf16 --allow-narrowing", says=": 0 of \\d+ elements changed"),
          Run("verify SRC OUT2", plan=False)], "all, and back"),
    qwen([Run(f"convert SRC OUT {NORMS} --allow-narrowing", says=r"(?s)\d+ NaN|are NaN.*elements changed|elements changed",
              check=casts(NORM_RULES, f32_with_odd_numbers, "bfloat16")),
          Run(f"verify SRC OUT {NORMS} --allow-narrowing", plan=False),
          Run(f"convert SRC OUT2 {NORMS} --allow-narrowing --to megatron --glu contiguous"),
          Run("verify OUT OUT2", plan=False),
          Run(f"convert SRC OUT {NORMS} --allow-narrowing", check=flip),
          Run(f"verify SRC OUT {NORMS} --allow-narrowing", 1, plan=False, says="attention/q")],
         "rounded", both(F32, config_changed(torch_dtype="float32", dtype="float32"))),
    *[qwen([Run(f"convert SRC OUT --dtype {word}", 4, says="is F64.*--allow-narrowing"),
            Run(f"convert SRC OUT --dtype {word} --allow-narrowing", says=r"are NaN(.|\n)* elements changed",
                check=casts([("", word.upper())], f64_beside_middles)),
            Run(f"verify SRC OUT --dtype {word} --allow-narrowing", plan=False)],
           f"of F64 to {word}", tensors_changed(f64_beside_middles)) for word in ("bf16", "f16", "f32")],
    qwen([Run("convert SRC OUT --dtype=*=f16 --allow-narrowing", says="too large for their new dtype",
              check=casts([("", "F16")], f32_with_odd_numbers)),
          Run("verify SRC OUT --dtype *=f16 --allow-narrowing", plan=False)], "to f16", F32),
    qwen([Run("convert SRC OUT --dtype *layers.1.mlp.gate.weight=f32 --dtype *=bf16",
              check=casts([(r"layers\.1\.mlp\.gate\.", "F32")]))], "by name, given twice"),
    qwen([Run("convert SRC OUT --dtype experts/gate=f32 experts/up=f32 --experts grouped --glu contiguous"),
          Run("convert SRC OUT2 --dtype experts/gate=f32 --experts grouped --glu contiguous", (3, 4)),
          Run("convert OUT OUT2 --dtype experts/gate=f32 experts/up=bf16 --allow-narrowing", 3,
              says="several matrices.*experts.gate_up_proj|experts.gate_up_proj.*several matrices")], "two matrices in one"),
    Case("whole/gpt_oss", "hf", [
        Run("convert SRC OUT --dtype experts/gate=f32", 3,
            says="gate_up_proj' holds several matrices, and --dtype gives experts/gate a dtype and experts/up none"),
        Run("convert SRC OUT --dtype experts/gate=f32 experts/up=f32"),
    ], note="dtypes: one of two matrices in one"),
    # The first rule that fits counts: one that is never the first would do nothing, and say nothing.
    *[qwen([Run(f"convert SRC OUT --dtype *=f32 {rule}", 2, says=r"all that it fits is taken by rules in front of it, such as '\*=f32'"),
            Run(f"convert SRC OUT --dtype {rule} *=f32 --allow-narrowing")], f"{rule} behind one for all")
      for rule in ("experts/down=bf16", "*layers.1.*=bf16")],
    qwen([Run("convert SRC OUT --dtype *=f32 experts/down=f32 *layers.1.*=f32", check=casts([("", "F32")]))],
         "rules that say the same"),
    qwen([Run("convert SRC OUT --dtype roter=f32", 2, says="no tensor has that role or name")], "a role that is none"),
    qwen([Run("convert SRC OUT --dtype mamba/*=f32 *=bf16 --force")], "a role that the model has not"),
    qwen([Run("convert SRC OUT --dtype router=int8", 2, says="is no rule")], "no dtype of numbers"),
    Case("quantized/fp8_block128", ".", [Run("convert SRC OUT --dtype norm/*=f32 *=bf16 --allow-narrowing"),
                                         Run("verify SRC OUT --dtype norm/*=f32 *=bf16 --allow-narrowing", plan=False),
                                         Run("inspect OUT --strict", plan=False),
                                         Run("convert SRC OUT2 --dtype experts/*=f32", 3, says="--decode bf16")],
         note="dtypes: codes stay"),
    Case("whole/deepseek_v3", "hf", [Run("convert SRC OUT --dtype *=f32"), Run("verify SRC OUT --dtype f32", plan=False),
                                     Run("convert OUT OUT2 --to megatron"), Run("verify OUT OUT2", plan=False)],
         note="dtypes: MTP's copies"),
    Case("whole/qwen3_next", "hf", [Run("convert SRC OUT --dtype *=f32 --to megatron"),
                                    Run("convert OUT OUT2 --to hf"), Run("verify SRC OUT2 --dtype f32", plan=False)],
         note="dtypes: a computed norm"),
]
