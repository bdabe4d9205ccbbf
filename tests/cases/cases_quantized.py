"""Quantized weights: GPTQ's and AWQ's words, what quantization_config says and what it does not decide."""
import json
import pathlib
import struct

from case import REFUSED, Case, Run, tensors_changed

DECODE = "convert SRC OUT --decode bf16"
SYMMETRIC = "gptq_zero_of_symmetric"
AWQ = "awq_autoround_configs"


def quantization_changed(**fields):
    """Returns a change that sets fields of quantization_config; a field of None is removed."""

    def change(source: pathlib.Path) -> None:
        path = source / "config.json"
        config = json.loads(path.read_text())
        said = config.get("quantization_config") or {}
        for name, value in fields.items():
            if value is None:
                said.pop(name, None)
            else:
                said[name] = value
        config["quantization_config"] = said
        path.write_text(json.dumps(config))

    return change


def file_written(name: str, content: dict | str):
    def change(source: pathlib.Path) -> None:
        (source / name).write_text(content if isinstance(content, str) else json.dumps(content))

    return change


def moved_to_file(name: str):
    """Returns a change that moves quantization_config out of config.json into a file beside it."""

    def change(source: pathlib.Path) -> None:
        path = source / "config.json"
        config = json.loads(path.read_text())
        (source / name).write_text(json.dumps(config.pop("quantization_config")))
        path.write_text(json.dumps(config))

    return change


def one_zero_changed(tensors: dict) -> None:
    """One zero point of the last module is another than 8."""
    name = sorted(n for n in tensors if n.endswith("qzeros"))[-1]
    dtype, shape, data = tensors[name]
    words = list(struct.unpack(f"<{len(data) // 4}I", data))
    words[-1] ^= 0x00100000
    tensors[name] = dtype, shape, struct.pack(f"<{len(words)}I", *words)


GPTQ_CASES = [
    Case("gptq_v1_borrow", "src_v1", [Run(DECODE, truth="truth_v1.safetensors")]),
    Case("gptq_v1_borrow", "src_v2", [Run(DECODE, truth="truth_v1.safetensors")]),
    Case("gptq_v1_borrow", "src_v2", [Run(DECODE, truth="truth_v1.safetensors")],
         change=quantization_changed(checkpoint_format=None, format="gptq_v2"), note="under another field"),
    Case("gptq_v1_borrow", "src_v1", [Run(DECODE, 3, says=r"checkpoint_format 'gptq', but quantize_config.json")],
         change=file_written("quantize_config.json", {"bits": 4, "checkpoint_format": "gptq_v2"}), note="contradicted"),
    Case("gptq_v1_borrow", "src_v1", [Run(DECODE, 3, says=r"sym false, but quantize_config.json")],
         change=file_written("quantize_config.json", {"bits": 4, "sym": True}), note="sym contradicted"),
    Case("gptq_v1_borrow", "src_v1", [Run(DECODE, truth="truth_v1.safetensors",
                                          check=lambda out: "" if not (out / "quantize_config.json").exists() else "kept")],
         change=moved_to_file("quantize_config.json"), note="said by the file alone"),
    Case("gptq_v1_borrow", "src_v1", [Run(DECODE, 3, says=r"version 'marlin'")],
         change=quantization_changed(checkpoint_format="marlin"), note="of Marlin"),
    Case(SYMMETRIC, "src_v1_8", [Run(DECODE, 3, says=r"qzeros.*\bsym\b")]),
    Case(SYMMETRIC, "src_v2_7", [Run(DECODE, 3, says=r"qzeros.*\bsym\b")]),
    Case(SYMMETRIC, "src_file_says_v2", [Run(DECODE, truth="truth_v1_8.safetensors")]),
    Case(SYMMETRIC, "src_v1_7", [Run(DECODE, truth="truth_v1_8.safetensors")]),
    Case(SYMMETRIC, "src_v1_7", [Run(DECODE, 3, says=r"qzeros.*\bsym\b"), Run("convert SRC OUT --experts grouped", 0)],
         change=tensors_changed(one_zero_changed), note="one module of many"),
    Case(SYMMETRIC, "src_v1_8", [Run(DECODE, truth="truth_v1_8.safetensors")],
         change=quantization_changed(checkpoint_format="gptq_v2"), note="of version 2"),
    Case(SYMMETRIC, "src_v1_8", [Run(DECODE, 0)], change=quantization_changed(sym=False), note="not symmetric"),
]

WORDS_CASES = [
    Case(AWQ, "src_GEMM", [Run(DECODE, truth="truth_GEMM.safetensors", some=True)]),
    Case(AWQ, "src_GEMM", [Run(DECODE, truth="truth_GEMM.safetensors", some=True)],
         change=quantization_changed(quant_method="AWQ"), note="method in capitals"),
    Case(AWQ, "src_GEMM", [Run(DECODE, 3, says="'gemv'")], change=quantization_changed(version="GEMV"), note="of GEMV"),
    Case(AWQ, "src_quant_config_json", [Run(DECODE, truth="truth_GEMM.safetensors", some=True)]),
    Case(AWQ, "src_GEMM", [Run(DECODE, truth="truth_GEMM.safetensors", some=True)],
         change=moved_to_file("quantize_config.json"), note="said by quantize_config.json"),
    Case(AWQ, "src_autoround_awq", [Run(DECODE, truth="truth_GEMM.safetensors", some=True)]),
    Case(AWQ, "src_autoround_gptq", [Run(DECODE, truth="truth_autoround_gptq.safetensors", some=True)]),
    Case(AWQ, "src_autoround_gptq", [Run(DECODE, REFUSED, says="auto_round:other")],
         change=quantization_changed(packing_format="auto_round:other"), note="another packing"),
]

CASES = GPTQ_CASES + WORDS_CASES
