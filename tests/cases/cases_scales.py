"""Codes, scales and what else belongs to a quantized weight: what is lost, cut, turned, contradicted, or unknown."""
import json
import pathlib
import struct
from typing import Callable

from case import REFUSED, Case, Run, both, read_safetensors, write_safetensors


def tensors_changed(edit: Callable[[dict], None]) -> Callable[[pathlib.Path], None]:
    """Returns a change that edits the mapping of the tensors of each file in place."""

    def change(source: pathlib.Path) -> None:
        for path in source.glob("*.safetensors"):
            tensors = read_safetensors(path)
            edit(tensors)
            write_safetensors(path, tensors)

    return change


def renamed_dtype(dtype: str, *words: str) -> Callable[[pathlib.Path], None]:
    """Returns a change that calls the one-byte elements of the tensors of these words `dtype`."""

    def edit(tensors: dict) -> None:
        for name, (_, shape, data) in tensors.items():
            if any(word in name for word in words) and len(data) == shape[0] * shape[-1]:
                tensors[name] = (dtype, shape, data)

    return tensors_changed(edit)


def as_bf16(tensors: dict) -> None:
    """Gives every weight of one byte an element of two: then it is a weight."""
    for name, (dtype, shape, data) in tensors.items():
        if dtype in ("F8_E4M3", "I8", "U8"):
            tensors[name] = ("BF16", shape, b"\x3f".join(bytes([byte]) for byte in data) + b"\x3f")


def only_in(word: str, dtype: str) -> Callable[[dict], None]:
    """All weights of one byte are BF16, but those of this word stay codes."""

    def edit(tensors: dict) -> None:
        kept = {n: (dtype, s, d) for n, (t, s, d) in tensors.items() if word in n and t in ("F8_E4M3", "I8", "U8")}
        as_bf16(tensors)
        tensors.update(kept)

    return edit


def shaped(tensors: dict, word: str, shape: Callable[[list[int]], list[int]]) -> None:
    """Gives the tensors of this word the shape that is made of theirs."""
    for name, (dtype, old, data) in tensors.items():
        if word in name:
            tensors[name] = (dtype, shape(old), data)


def reshaped(word: str, shape: Callable[[list[int]], list[int]]) -> Callable[[pathlib.Path], None]:
    return tensors_changed(lambda tensors: shaped(tensors, word, shape))


def stated(rows: int, cols: int, word: str = "weight_shape") -> Callable[[dict], None]:
    """Every tensor of this word states this shape."""

    def edit(tensors: dict) -> None:
        for name in [n for n in tensors if word in n]:
            tensors[name] = ("I64", [2], struct.pack("<2q", rows, cols))

    return edit


def quantization_changed(edit: Callable[[dict], None]) -> Callable[[pathlib.Path], None]:
    def change(source: pathlib.Path) -> None:
        path = source / "config.json"
        config = json.loads(path.read_text())
        edit(config["quantization_config"])
        path.write_text(json.dumps(config))

    return change


def without(*words: str) -> Callable[[dict], None]:
    def edit(tensors: dict) -> None:
        for name in [n for n in tensors if any(word in n for word in words)]:
            del tensors[name]

    return edit


def renamed(old: str, new: str) -> Callable[[dict], None]:
    def edit(tensors: dict) -> None:
        for name in [n for n in tensors if old in n]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return edit


TO_TRAINERS = ("convert SRC OUT --to megatron", "convert SRC OUT --to torchtitan",
               "convert SRC OUT --to megatron --scope experts", "convert SRC OUT --to megatron --unknown keep")


def bare(source: str, dtype: str, change=None, note: str = "", commands=TO_TRAINERS[:2]) -> Case:
    """Codes that go to no trainer, and that inspect names by their dtype."""
    refused = [Run(command, REFUSED, says=dtype) for command in commands]
    return Case("codes_without_scales", source, [Run("inspect SRC --strict", 3, says=dtype), *refused], change, note)


CODES_WITHOUT_SCALES = [
    *(bare(f"src_{dtype}", dtype, commands=TO_TRAINERS) for dtype in ("F8_E4M3", "I8", "U8")),
    bare("src_no_config", "F8_E4M3", commands=TO_TRAINERS),
    bare("src_all", "F8_E4M3", commands=("convert SRC OUT --to megatron",)),
    bare("src_all", "F8_E4M3", tensors_changed(only_in("self_attn.q_proj", "F8_E4M3")), "one matrix of attention",
         ("convert SRC OUT --to megatron",)),
    *(bare("src_no_config", dtype, renamed_dtype(dtype, ".experts."), dtype)
      for dtype in ("F8_E5M2", "I8", "U8", "F8_E4M3FNUZ", "F8_E8M0")),
    bare("src_no_config", "I8", tensors_changed(only_in("experts.1.down_proj", "I8")), "one matrix of an expert"),
    # Weights are weights.
    Case("codes_without_scales", "src_no_config",
         [Run("inspect SRC --strict"), *(Run(command) for command in TO_TRAINERS[:2])],
         tensors_changed(as_bf16), "BF16"),
    # Grouping renames nothing that a trainer reads, and is exact.
    Case("codes_without_scales", "src_no_config", [Run("convert SRC OUT --experts grouped")], note="grouped"),
]


def broken(name: str, source: str, tensor: str, numbers: str, change=None, note: str = "",
           moves: tuple[str, ...] = ("--experts grouped",), slug: str = "size-mismatch") -> Case:
    """A grid that every command refuses with one slug, naming the same tensor and the numbers."""
    says = rf"(?s){tensor}.*{numbers}"
    end = rf"{says}.*\[{slug}\]"
    runs = [Run("inspect SRC --strict", 3, says=says), Run("convert SRC OUT --decode bf16", 3, says=end)]
    runs += [Run(f"convert SRC OUT {words}", 3, says=end) for words in moves]
    runs.append(Run("verify SRC SRC", 3, says=end))
    return Case(name, source, runs, change, note)


def sound(name: str, source: str, change=None, note: str = "", moves: tuple[str, ...] = ("--experts grouped",)) -> Case:
    return Case(name, source, [Run("inspect SRC --strict"), Run("convert SRC OUT --decode bf16"),
                               *(Run(f"convert SRC OUT {words}") for words in moves)], change, note)


def turned(shape: list[int]) -> list[int]:
    return [*shape[:-2], shape[-1], shape[-2]]


BROKEN_GRIDS = [
    broken("broken_scale_grids", "src_channel_short", r"experts\.1\.up_proj\.weight_scale", r"\[31, 1\].*\[32, 32\]"),
    broken("broken_scale_grids", "src_nvfp4_narrow", r"gate_proj\.weight_scale", r"\[96, 3\].*\[96, 64\]"),
    broken("broken_scale_grids", "src_mxfp4_one_expert", "gate_up_proj_scales", r"\[1, 192, 2\].*\[2, 192, 64\]",
           moves=("--experts indexed",)),
    broken("broken_scale_grids", "src_shape_lies", r"gate_proj\.weight_shape", r"\[32, 64\].*\[32, 32\]"),
    broken("broken_scale_grids", "src_transposed", r"down_proj\.weight_scale_inv", r"\[2, 1\].*\[32, 160\]"),
    broken("grids_and_types", "grid_fp8_T_160_32", "weight_scale_inv", r"\[2, 1\].*\[32, 160\]"),
    broken("grids_and_types", "grid_fp8_1d_160_32", "weight_scale_inv", r"\[2\].*\[32, 160\]"),
    broken("grids_and_types", "grid_ch_1N_64_64", "weight_scale", r"\[1, 64\].*\[64, 64\]"),
    broken("grids_and_types", "grid_i8_1N_64_64", "weight_scale", r"\[1, 64\].*\[64, 64\]"),
    broken("grids_and_types", "grid_i4_T_ok_32_32", "weight_scale", r"\[1, 32\].*\[32, 32\]"),
    broken("grids_and_types", "grid_nv_T_16_16", "weight_scale", r"\[1, 16\].*\[16, 16\]"),
    broken("grids_and_types", "grid_i4_ok_lie_64_32", "weight_shape", r"\[33, 192\].*\[32, 64\]"),
    broken("grids_and_types", "grid_i4_ok_wrongshape_64_32", "weight_shape", r"\[1, 2\].*\[32, 64\]"),
    broken("grids_and_types", "awq_q_proj_63_inputs", r"q_proj\.qweight", r"63.*64", slug="model-shape"),
    broken("grids_and_types", "nvfp4_k_proj_62_inputs", r"k_proj\.weight", r"62.*64", slug="model-shape"),
    # The same checkpoints, whole.
    sound("grids_and_types", "grid_ch_1N_64_64", reshaped("weight_scale", turned), "a column"),
    sound("grids_and_types", "grid_ch_1N_64_64", reshaped("weight_scale", lambda s: [s[1]]), "one axis"),
    sound("grids_and_types", "grid_i8_1N_64_64", reshaped("weight_scale", turned), "a column"),
    sound("grids_and_types", "grid_i4_T_ok_32_32", reshaped("weight_scale", turned), "a column"),
    sound("grids_and_types", "grid_nv_T_16_16", reshaped("weight_scale", lambda s: turned(s) if s[:1] == [1] else s),
          "a column"),
    sound("grids_and_types", "grid_fp8_T_160_32",
          both(reshaped("gate_proj.weight_scale_inv", turned), reshaped("up_proj.weight_scale_inv", turned),
               reshaped("down_proj.weight_scale_inv", turned)), "turned back"),
    sound("broken_scale_grids", "src_shape_lies", tensors_changed(stated(32, 32)), "true shapes"),
]

ROTATED = "convert SRC OUT --decode bf16"
NO_WORDS = quantization_changed(lambda words: words.pop("transform_config"))


def location(*places: str) -> Callable[[pathlib.Path], None]:
    def edit(words: dict) -> None:
        apply = [{"targets": ["Linear"], "location": place, "inverse": False, "ignore": []} for place in places]
        words["transform_config"] = {"config_groups": {"v": {"type": "hadamard", "apply": apply}}}

    return quantization_changed(edit)


def word(name: str, value) -> Callable[[pathlib.Path], None]:
    return quantization_changed(lambda words: words.update({name: value}))


RUN_TIME_ARITHMETIC = [
    Case("online_rotation", "src_R4", [Run(ROTATED, REFUSED, says="transform_config"),
                                       Run(f"{ROTATED} --to megatron", REFUSED, says="transform_config")]),
    Case("online_rotation", "src_R4_tensors", [Run(ROTATED, REFUSED, says="transform_config|R4_input")]),
    Case("online_rotation", "src_gptq", [Run(ROTATED, REFUSED, says="rotation"),
                                         Run(f"{ROTATED} --to megatron", REFUSED, says="rotation")]),
    Case("online_rotation", "src_R4_tensors", [Run(ROTATED, REFUSED, says="R4_input")], NO_WORDS, "no word, tensors"),
    *(Case("online_rotation", "src_R4", [Run(ROTATED, REFUSED, says=place)], location("weight_output", place), place)
      for place in ("input", "output", "q_attn", "k_cache", "attn_q")),
    Case("online_rotation", "src_R4", [Run(ROTATED)], location("weight_input", "weight_output"), "in the weights"),
    *(Case("online_rotation", "src_R4", [Run(ROTATED)], word("transform_config", value), f"empty {value}")
      for value in ({}, None, {"config_groups": {}})),
    *(Case("online_rotation", "src_gptq", [Run(ROTATED)], word("rotation", value), f"empty {value}")
      for value in (None, "", False)),
    Case("online_rotation", "src_gptq", [Run(ROTATED, REFUSED, says="rotation")], word("rotation", "random"), "random"),
    Case("online_rotation", "src_gptq", [Run(ROTATED, REFUSED, says="adapter is set")],
         both(word("rotation", None), word("adapter", {"name": "eora", "rank": 64})), "an adapter"),
    Case("online_rotation", "src_gptq", [Run(ROTATED)], both(word("rotation", None), word("adapter", None)), "no adapter"),
    # Codes move as they are.
    Case("online_rotation", "src_R4", [Run("convert SRC OUT --experts grouped")], note="moved"),
]

UNKNOWN_PARTS = [
    Case("unknown_parts_of_modules", "src_svdquant", [Run(ROTATED, REFUSED, says="svdquant_lora_a")]),
    Case("unknown_parts_of_modules", "src_smooth", [Run(ROTATED, REFUSED, says="smooth_scale")]),
    *(Case("unknown_parts_of_modules", "src_smooth", [Run(ROTATED, REFUSED, says=new)],
           tensors_changed(renamed(".smooth_scale", f".{new}")), new)
      for new in ("lora_A.weight", "channel_multiplier", "rotation")),
    *(Case("unknown_parts_of_modules", "src_smooth", [Run(ROTATED)],
           tensors_changed(renamed(".smooth_scale", f".{new}")), new) for new in ("bias", "k_scale", "v_scale")),
    Case("unknown_parts_of_modules", "src_smooth", [Run(ROTATED)], tensors_changed(without("smooth_scale")), "without"),
]

SHAPE_OF_THREE = [
    Case("ct_shape_of_three", "src", [Run(ROTATED, truth="truth.safetensors", some=True)]),
    Case("ct_shape_of_three", "src", [Run(ROTATED, 3, says=r"gate_up_proj.*_shape.*states")],
         tensors_changed(lambda tensors: tensors.update({
             name: (dtype, shape, struct.pack("<3q", 1, 64, 96)) for name, (dtype, shape, _) in tensors.items()
             if name.endswith("gate_up_proj_shape")})), "another shape"),
]

CASES = CODES_WITHOUT_SCALES + BROKEN_GRIDS + RUN_TIME_ARITHMETIC + UNKNOWN_PARTS + SHAPE_OF_THREE
