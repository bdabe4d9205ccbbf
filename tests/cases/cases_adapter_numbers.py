"""Adapters with numbers that are none, and with one factor by two names. The factors are those that PEFT wrote."""
import struct

from case import Case, Run, tensors_changed

FILE = "adapter_model.safetensors"
GATE_A = "base_model.model.model.layers.0.mlp.experts.1.gate_proj.lora_A.weight"
UP_A = GATE_A.replace("gate_proj", "up_proj")
CONVERT = "convert SRC OUT --from-config CASE/base/config.json --to hf"
GROW = CONVERT + " --experts grouped --grow-rank"
VERIFY = "verify SRC OUT --from-config CASE/base/config.json"


def first_number(name: str, value: float):
    """Returns a change that gives a factor another first number."""

    def edit(tensors: dict) -> None:
        dtype, shape, data = tensors[name]
        tensors[name] = dtype, shape, struct.pack("<f", value) + data[4:]

    return edit


def of_both(value: float):
    def edit(tensors: dict) -> None:
        first_number(GATE_A, value)(tensors)
        first_number(UP_A, value)(tensors)

    return edit


def without_up(value: float):
    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if ".up_proj." in name]:
            del tensors[name]
        first_number(GATE_A, value)(tensors)

    return edit


def again_as(other: str):
    """Returns a change that adds a factor once more by another name, with other numbers."""

    def edit(tensors: dict) -> None:
        dtype, shape, data = tensors[GATE_A]
        tensors[other] = dtype, shape, bytes(len(data))

    return edit


def adapter(name: str, edit, *runs: Run, note: str) -> Case:
    return Case(f"adapter_{name}", "adapter", list(runs), change=tensors_changed(edit, FILE), note=note)


CASES = [
    # Ranks of gate meet zeros in up's rows of B, and 0 times what is no number is no zero.
    *[adapter("qwen3_sep_peft018", first_number(GATE_A, value),
              Run(GROW, 4, says=r"experts\.1\.gate_proj\.lora_A\.weight.*a number of rank 0 is NaN or infinite.*not-exact"),
              Run(CONVERT + " --experts indexed --force"), Run(VERIFY, plan=False), note=f"{value} in an A of gate")
      for value in (float("nan"), float("inf"))],
    adapter("qwen3_sep_equalA_peft018", without_up(float("nan")), Run(CONVERT + " --experts grouped", 4, says="a number of rank 0 is NaN"),
            note="NaN in an A of gate, without up"),
    # One A for both meets no zeros, and moves.
    adapter("qwen3_sep_equalA_peft018", of_both(float("nan")), Run(CONVERT + " --experts grouped"), Run(VERIFY, plan=False),
            note="NaN in the A of both"),
    *[adapter("qwen3_sep_peft018", again_as(other),
              Run(CONVERT + " --force", 4, says="are one part of one module by two names.*redundant-keys"),
              Run("convert CASE/base OUT --merge SRC", 4, says="by two names"), note=f"a factor again, {note}")
      for other, note in ((GATE_A.replace(".weight", ".default.weight"), "as PEFT names it in memory"),
                          (GATE_A.removeprefix("base_model.model."), "without PEFT's prefix"))],
]
