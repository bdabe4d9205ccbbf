"""Quantized weights: GPTQ's and AWQ's words, what quantization_config says and what it does not decide."""
import json
import pathlib
import struct

from case import REFUSED, Case, Run, both, config_changed, config_lacks, tensors_changed

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

RUN, HUB = "stale_quantization_config_run", "stale_quantization_config_hub"
LACKS = config_lacks("quantization_config", "compression_config")


def renamed_quantization(name: str, inside: str = "", file: str = "hf/config.json"):
    """Returns a change that gives quantization_config another name, or puts it inside another object."""

    def change(source: pathlib.Path) -> None:
        path = source / file
        config = json.loads(path.read_text())
        said = config.pop("quantization_config")
        (config.setdefault(inside, {}) if inside else config)[name] = said
        path.write_text(json.dumps(config))

    return change


def experts_quantized(source: pathlib.Path) -> None:
    """One expert's matrix becomes FP8 in one block, so that the model is quantized in part."""

    def edit(tensors: dict) -> None:
        for name in [n for n in tensors if ".experts." in n and n.endswith("_proj.weight")]:
            _, shape, data = tensors[name]
            tensors[name] = "F8_E4M3", shape, data[: len(data) // 2]
            tensors[name + "_scale_inv"] = "F32", [1, 1], struct.pack("<f", 1.0)

    tensors_changed(edit)(source)


def has_quantization(out: pathlib.Path) -> str:
    return "" if "quantization_config" in json.loads((out / "config.json").read_text()) else "quantization_config is gone"


def has_no_file(name: str):
    return lambda out: f"{name} is there" if (out / name).exists() else LACKS(out)


TO_HF = "convert SRC OUT --to hf --from-glu contiguous"
STALE_CASES = [
    Case(RUN, "src", [Run(TO_HF, says="quantization_config", truth="truth.safetensors", check=LACKS),
                      Run("inspect SRC --strict", (0, 3), says="quantization_config")]),
    Case(RUN, "src/iter_0000100", [Run(TO_HF + " --from-config CASE/hub_config.json", truth="truth.safetensors", check=LACKS)]),
    Case(RUN, "src", [Run(TO_HF, truth="truth.safetensors", check=LACKS)],
         change=renamed_quantization("compression_config"), note="compression_config"),
    Case(RUN, "src", [Run(TO_HF, truth="truth.safetensors", check=LACKS)],
         change=renamed_quantization("quantization_config", "text_config"), note="in text_config"),
    Case(RUN, "src", [Run(TO_HF, truth="truth.safetensors", check=has_no_file("hf_quant_config.json"))],
         change=file_written("hf/hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}), note="two files"),
] + [
    case for name in ("src_fp8", "src_mxfp4") for case in (
        Case(HUB, name, [
            Run("inspect SRC --strict", 3, says="quantization_config", never_says=r"loads in\s+transformers"),
            Run(DECODE, check=LACKS), Run(DECODE + " --force", check=LACKS),
            Run(DECODE + " --to megatron"), Run("convert OUT OUT2 --to hf", check=LACKS),
            Run("convert SRC OUT --to megatron"), Run("convert OUT OUT2 --to hf", check=LACKS),
        ]),
        Case(HUB, name, [Run("inspect SRC --strict", 0, says=r"loads in\s+transformers"),
                         Run(DECODE, 4, says="already-in-layout")],
             change=config_changed(quantization_config=None), note="without it"),
        Case(HUB, name, [Run("inspect SRC --strict", 0, says=r"loads in\s+transformers")],
             change=config_changed(quantization_config={"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}),
             note="of the cache alone"),
    )
] + [
    Case(HUB, "src_fp8", [Run("convert SRC OUT --force", check=has_quantization), Run(DECODE, check=LACKS)],
         change=experts_quantized, note="quantized in part"),
    Case(HUB, "src_fp8", [Run("inspect SRC --strict", 3, says="hf_quant_config.json"),
                          Run("convert SRC OUT --force", check=has_no_file("hf_quant_config.json"))],
         change=both(config_changed(quantization_config=None),
                     file_written("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}})),
         note="said by a file alone"),
]


def dtypes_are(word: str):
    def check(out: pathlib.Path) -> str:
        config = json.loads((out / "config.json").read_text())
        said = [c[f] for c in (config, config.get("text_config", {})) for f in ("torch_dtype", "dtype") if f in c]
        return "" if said and set(said) == {word} else f"config.json says {said}"

    return check


DTYPE_CASES = [
    Case("decode_torch_dtype", "src_awq", [Run(DECODE, check=dtypes_are("bfloat16")),
                                           Run("convert SRC OUT --decode f32", check=dtypes_are("float32"))]),
    Case("decode_torch_dtype", "src_fp8", [Run("convert SRC OUT --decode f32", check=dtypes_are("float32")),
                                           Run("convert SRC OUT --decode f32 --to megatron"),
                                           Run("convert OUT OUT2 --to hf", check=dtypes_are("float32"))]),
    Case("decode_torch_dtype", "src_awq", [Run("convert SRC OUT --decode f32", check=dtypes_are("float32"))],
         change=config_changed(torch_dtype=None, dtype="float16", text_config={"dtype": "float16"}), note="as dtype"),
    Case("qwen3_vl_per_expert", "src_nvfp4", [Run("convert SRC OUT --force", check=dtypes_are("bfloat16"))]),
]

CASES += STALE_CASES + DTYPE_CASES

METHOD = "quant_method_of_experts"
GROUPED = "convert SRC OUT --experts grouped"
METHOD_CASES = [
    Case(METHOD, f"src_{name}", [Run(DECODE, truth=f"truth_{truth}.safetensors", some=True), Run(GROUPED, 0)])
    for name, truth in (("nvfp4", "nvfp4"), ("nvfp4_two_files", "nvfp4"), ("mimo", "mimo"), ("quark", "quark"))
] + [
    Case(METHOD, "src_nvfp4", [Run(DECODE, truth="truth_nvfp4.safetensors", some=True), Run(GROUPED, 0)],
         change=quantization_changed(quant_method="mxfp4"), note="under another method"),
    Case(METHOD, "src_nvfp4", [Run(DECODE, 3, says="weight_scale_inv|scales")],
         change=quantization_changed(weight_block_size=[8, 8]), note="a block that fits no grid"),
    Case(METHOD, "src_mimo", [Run(DECODE, 3, says="quantization_config says 'awq'")],
         change=quantization_changed(quant_method="awq"), note="other bits"),
] + [
    Case(METHOD, "src_nvfp4", [Run("inspect SRC --strict", 3, says=says)] + [Run(command, 3, says=rf"{says}.*\[config-json\]")
                                                                           for command in (DECODE, GROUPED)],
         change=quantization_changed(**{field: value}), note=f"{field} of another type")
    for field, value, says in (("quant_method", 2, "quant_method is 2, where a text"),
                               ("quant_method", 2**64, "quant_method is .*too large, where a text"),
                               ("group_size", "16", 'group_size is "16", where a whole number'),
                               ("config_groups", [1], r"config_groups is \[1\], where an object"),
                               ("ignore", "lm_head", 'ignore is "lm_head", where a list'))
] + [
    Case(METHOD, "src_nvfp4", [Run(DECODE, truth="truth_nvfp4.safetensors", some=True), Run(GROUPED, 0)],
         change=quantization_changed(ignore=None, group_size=None, config_groups=None, notes=2**64), note="nothing said"),
    # Codes of attention are in their layers, as its weights are.
    *[Case("quantized", source, [Run("inspect SRC", says=rf"layers 0 to 1: .*, rest {rest} in each\n +no layer: rest 8\.32 kB")],
           note="bytes of layers")
      for source, rest in (("nvfp4_modelopt", r"7\.84 kB"), ("gptq_int4", r"9\.02 kB"))],
]
CASES += METHOD_CASES
