"""Tensors of what sees and hears beside a language model: one that is missing is named, for programs start it at random."""
from case import Case, Run, tensors_changed


def without(*names: str):
    def edit(tensors: dict) -> None:
        for name in names:
            del tensors[name]

    return tensors_changed(edit)


def without_all(prefix: str):
    """Leaves out all that begins with the prefix."""

    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if name.startswith(prefix)]:
            del tensors[name]

    return tensors_changed(edit)


def lacks(model: str, *names: str) -> Case:
    said = f"'{names[0]}'.* missing, which a {model} model has beside its language model"
    return Case(f"whole/{model}", "hf", [
        Run("inspect SRC", says=f"problem.*{said}", never_says=r"loads in\s+transformers"),
        Run("convert SRC OUT --to megatron --unknown keep", says=f"warning: {said}"),
        Run("convert SRC OUT --drop vision", never_says="beside its language model"),
    ], change=without(*names), note=f"without {names[0]}")


CASES = [
    # What talks has experts of its own, a tensor for each.
    Case("whole/qwen3_omni_moe", "hf", [
        Run("convert SRC OUT --experts grouped --glu contiguous"), Run("verify SRC OUT"),
        Run("convert OUT OUT2 --experts indexed --glu split"), Run("verify SRC OUT2"),
        Run("convert OUT OUT2 --to megatron --unknown keep"), Run("verify SRC OUT2"),
    ], note="grouped beside a model that talks"),
    lacks("glm4v_moe", "model.visual.post_conv_layernorm.weight"),
    lacks("glm4v_moe", "model.visual.merger.post_projection_norm.bias", "model.visual.patch_embed.proj.weight"),
    lacks("kimi_k25", "vision_tower.encoder.blocks.0.norm1.bias"),
    lacks("qwen3_omni_moe", "thinker.audio_tower.ln_post.weight"),
    *(Case(f"whole/{model}", "hf", [Run("inspect SRC", never_says="beside its language model")], note="all is there")
      for model in ("glm4v_moe", "kimi_k25", "qwen3_omni_moe")),
    Case("whole/glm4v_moe", "hf", [Run("convert SRC OUT --to megatron", never_says="beside its language model")],
         change=without_all("model.visual."), note="a language model alone"),
]
