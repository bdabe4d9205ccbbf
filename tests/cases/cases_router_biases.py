"""Biases of routers that torchtitan asks every model for: zeros on the way there, nothing on the way back, and no way back
for one that was trained."""
import pathlib
import struct

from case import REFUSED, Case, Run, read_safetensors, read_tensors, write_safetensors

NAME = ".moe.expert_bias_E"


def has_biases(zeros: int, experts: int):
    def check(out: pathlib.Path) -> str:
        found = [tensor for name, tensor in read_tensors(out).items() if name.endswith(NAME)]
        if len(found) != zeros or any(tensor != ("F32", [experts], bytes(4 * experts)) for tensor in found):
            return f"has {[tensor[:2] for tensor in found]}"
        return ""

    return check


def trained(source: pathlib.Path) -> None:
    """Gives a router a bias that is not zero."""
    tensors = read_safetensors(source / "model.safetensors")
    experts = next(shape[0] for name, (_, shape, _) in tensors.items() if name.endswith("mlp.gate.weight"))
    tensors["model.layers.1.mlp.gate.e_score_correction_bias"] = ("F32", [experts], struct.pack("<f", 0.5) * experts)
    write_safetensors(source / "model.safetensors", tensors)


def there_and_back(model: str, layers: int, experts: int) -> Case:
    return Case(f"whole/{model}", "hf", [
        Run("convert SRC OUT --to torchtitan --format safetensors", says=f"{layers} biases of routers.*written as zeros",
            check=has_biases(layers, experts)),
        Run("verify SRC OUT"),
        Run("convert OUT OUT2 --to hf", says=f"{layers} biases of routers.*all zero and left out"),
        Run("verify SRC OUT2"),
        Run("convert SRC OUT --to torchtitan"),
        Run("check OUT"),
        Run("convert OUT OUT2 --to megatron", says="all zero and left out"),
        Run("verify SRC OUT2"),
    ], note="biases of zeros")


CASES = [
    there_and_back("qwen3_moe", 2, 8),
    Case("whole/qwen3_moe", "hf", [Run("convert SRC OUT --to torchtitan", REFUSED, says="bias of the router.*not zero")],
         change=trained, note="a trained bias"),
    Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT --to torchtitan", never_says="written as zeros"),
    ], note="biases of its own"),
    Case("whole/qwen3", "hf", [
        Run("convert SRC OUT --to torchtitan", never_says="written as zeros"),
    ], note="no experts, no biases"),
]
