"""Words of wrappers (torch.compile, FSDP, activation checkpointing, DDP) between the components of keys."""
import pathlib
import re
from typing import Callable

from case import Case, Run, read_tensors, tensors_changed


def respelled(spell: Callable[[str], str]):
    """Returns a change that spells the keys of the model, without the text that the input has in front of them."""

    def edit(tensors: dict) -> None:
        for name in list(tensors):
            tensors[spell(name.removeprefix("_orig_mod."))] = tensors.pop(name)

    return tensors_changed(edit)


def in_layers(word: str, part: str = ""):
    """Returns a spelling with the word behind each layer's number and its `part`."""
    return lambda name: re.sub(rf"(layers\.\d+\.{part})", rf"\1{word}", name)


def model_only(name: str) -> str:
    return name.replace("model.", "model._orig_mod.")


def everywhere(name: str) -> str:
    name = in_layers("_fsdp_wrapped_module._checkpoint_wrapped_module.")(in_layers("_orig_mod.", r"mlp\.")(name))
    return "_fsdp_wrapped_module." + name.replace("model.", "model._fsdp_wrapped_module.")


def without_words(out: pathlib.Path) -> str:
    found = [name for name in read_tensors(out) if re.search(r"_orig_mod|_wrapped_module|module\.", name)]
    return f"{found[0]} has a wrapper's word in it" if found else ""


SPELLINGS = {
    "compiled layers": in_layers("_orig_mod."),
    "compiled model": model_only,
    "FSDP in layers": in_layers("_fsdp_wrapped_module.", r"mlp\."),
    "checkpointed attention": in_layers("_checkpoint_wrapped_module.", r"self_attn\."),
    "DDP in layers": in_layers("module."),
    "some keys": lambda name: "_orig_mod." + name if name.startswith("model.") else name,
    "one key": lambda name: name.replace("layers.0.input_layernorm", "layers.0._orig_mod.input_layernorm"),
    "wrappers of wrappers": everywhere,
}
SAYS = r"keys have words in them that torch\.compile"


def twice(tensors: dict) -> None:
    name = "model.layers.0.input_layernorm.weight"
    tensors["_orig_mod.model.layers.0._orig_mod.input_layernorm.weight"] = tensors["_orig_mod." + name]


CASES = [
    *[Case("wrapper_prefixes", "src_orig_mod", [
        Run(f"convert SRC OUT --to {to}", says=SAYS),
        Run("convert OUT OUT2 --to hf", truth="truth.safetensors"),
        Run("verify SRC OUT"),
        Run("inspect SRC", says=SAYS, never_says=r"loads in +transformers"),
        Run("inspect SRC --strict", 3),
    ], change=respelled(spell), note=f"{note} to {to}")
      for note, spell in SPELLINGS.items() for to in ("megatron", "torchtitan")],
    *[Case("wrapper_prefixes", "src_orig_mod", [
        Run("convert SRC OUT --to hf", says=SAYS, truth="truth.safetensors"),
        Run("inspect OUT --strict"),
        Run("diff SRC OUT"),
        Run("convert SRC OUT --experts grouped --glu contiguous", check=without_words),
        Run("convert SRC OUT --to megatron --scope experts", check=without_words),
    ], change=respelled(spell), note=note) for note, spell in SPELLINGS.items() if spell is not everywhere],
    # Two keys that become one: nothing says which of them is the model's.
    Case("wrapper_prefixes", "src_orig_mod", [
        Run(command, 4, says=r"layers\.0\._orig_mod\.input_layernorm.*are one key.*\[redundant-keys\]")
        for command in ("convert SRC OUT --to megatron", "convert SRC OUT --to hf", "digest SRC", "verify SRC SRC",
                        "inspect SRC")
    ], change=tensors_changed(twice), note="one key twice"),
]
