"""Scales, zero points and group indices of every stored format, lost, renamed, cut, turned or given a second value: each
command ends with the same status and slug, and names the same tensor."""
import json
import math
import pathlib
from typing import Callable, Iterator

from case import TESTDATA, Case, Run, both, config_changed, read_tensors, reported, write_safetensors

Tensor = tuple[str, list[int], bytes]

# Experts and attention, where the checkpoint has them.
MODULES = ("experts.1.down_proj", "experts.gate_up_proj", "experts.down_proj", "layers.1.self_attn.q_proj")
PARTS = ("scale", "scales", "weight_scale_inv", "weight_scale", "weight_scale_2", "qzeros", "weight_zero_point", "g_idx")


def cut(tensor: Tensor, axis: int) -> Tensor:
    """Returns the tensor without the last index of an axis."""
    dtype, shape, data = tensor
    inner = len(data) // math.prod(shape[: axis + 1])
    rows = [data[at : at + inner * (shape[axis] - 1)] for at in range(0, len(data), inner * shape[axis])]
    return dtype, [*shape[:axis], shape[axis] - 1, *shape[axis + 1 :]], b"".join(rows)


def faults_of(name: str, tensor: Tensor) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yields what is done to a tensor, and the tensors that stand in its place then."""
    dtype, shape, data = tensor
    yield "lost", {}
    yield "renamed", {name + "_old": tensor}
    for axis, extent in enumerate(shape):
        if extent > 1:
            yield f"cut along axis {axis}", {name: cut(tensor, axis)}
    if len(shape) > 1 and shape[-1] != shape[-2]:
        yield "turned", {name: (dtype, [*shape[:-2], shape[-1], shape[-2]], data)}
    if math.prod(shape) == 1:
        yield "two values", {name: (dtype, [2], data * 2)}
        yield "two values in a column", {name: (dtype, [2, 1], data * 2)}


def replaced(name: str, tensors: dict[str, Tensor]) -> Callable[[pathlib.Path], None]:
    def change(source: pathlib.Path) -> None:
        whole = read_model(source)
        del whole[name]
        for path in [*source.glob("*.safetensors"), *source.glob("*.index.json")]:
            path.unlink()
        write_safetensors(source / "model.safetensors", whole | tensors)

    return change


def read_model(source: pathlib.Path) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint, which those it decodes to may lie beside."""
    return {name: tensor for path in source.glob("model*.safetensors") for name, tensor in read_tensors(path).items()}


def broken(name: str, source: str, folder: pathlib.Path) -> Iterator[Case]:
    """Yields the cases of one checkpoint, a copy of which lies in the folder."""
    move = "--experts indexed" if "gpt_oss" in name else "--experts grouped"
    commands = ["inspect SRC", f"plan SRC OUT {move}", f"convert SRC OUT {move}", "plan SRC OUT --decode bf16",
                "convert SRC OUT --decode bf16", "verify SRC SRC"]
    for tensor, stored in sorted(read_model(folder).items()):
        module = next((word for word in MODULES if word in tensor), "")
        if not module or tensor.split(module)[1][1:] not in PARTS:
            continue
        for what, instead in faults_of(tensor, stored):
            yield Case(name, source, [], replaced(tensor, instead), f"{tensor} {what}", alike=(commands, module))


def all_broken() -> Iterator[Case]:
    for path in sorted((TESTDATA / "quantized").iterdir()):
        if path.is_dir():
            yield from broken(f"quantized/{path.name}", ".", path)
    for source in ("src_nvfp4", "src_mimo", "src_quark"):
        yield from broken("quant_method_of_experts", source, reported() / "quant_method_of_experts" / source)


# Without a configuration, the zero points of other experts say that this one has lost its own.
LOST = "model.layers.1.mlp.experts.1.down_proj.weight_zero_point"
NO_WORDS = config_changed(quantization_config=None)
DECODE = "convert SRC OUT --decode bf16"
UNSAID = [Case("quantized/ct_int4_asym", ".", [Run(DECODE, 3, says=rf"{LOST}.*\[scale-missing\]")],
               both(NO_WORDS, replaced(LOST, {})), "zero points lost, no configuration"),
          Case("quantized/ct_int4_asym", ".", [Run(DECODE)], NO_WORDS, "no configuration"),
          Case("quantized/ct_int4_g32", ".", [Run(DECODE)], NO_WORDS, "no configuration")]

CASES = [*all_broken(), *UNSAID]
