"""Messages that name the thing that is there."""
import json
import pathlib

from case import Case, Run


def recorded_naming(naming: str):
    """Returns a check that the record of OUT names this naming."""

    def check(out: pathlib.Path) -> str:
        said = json.loads((out / "glu_ckpt.json").read_text())["naming"]
        return "" if said == naming else f"the record says {said}, not {naming}"

    return check


V5 = recorded_naming("hf:qwen3_vl_moe-v5")
GROUP = "--experts grouped --glu contiguous"
QWEN3_VL = "qwen3_vl_per_expert"

QWEN3_VL_CASES = [
    Case(QWEN3_VL, f"src_{word}", [
        Run("convert SRC OUT --force", check=V5),
        Run(f"convert SRC OUT {GROUP}", check=V5),
        Run("verify SRC OUT"),
        Run("convert OUT OUT2 --experts indexed --glu split"),
        Run("verify SRC OUT2 --decode bf16"),
        Run("convert SRC OUT --decode bf16", truth=f"truth_{word}.safetensors", some=True, check=V5),
        Run(f"convert SRC OUT --decode bf16 {GROUP}", check=V5),
        Run("verify SRC OUT --decode bf16"),
        Run("convert OUT OUT2 --experts indexed --glu split", truth=f"truth_{word}.safetensors", some=True),
        # The hub's own form, [in, out], which `--to hf` gives.
        Run("convert OUT OUT2 --to hf", check=recorded_naming("hf:qwen3_vl_moe")),
    ])
    for word in ("awq", "nvfp4")
]

CASES = [
    Case("small_messages", "src_mlx", [Run("inspect SRC", 0)]),
    *QWEN3_VL_CASES,
]
