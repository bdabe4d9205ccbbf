"""Tensors of what sees and hears beside a language model: one that is missing is named, for programs start it at random."""
import json
import pathlib

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
    """What lacks in the hub's form lacks on the way back as well; the trainer reads none of it."""
    said = f"'{names[0]}'.* missing, which a {model} model has beside its language model"
    return Case(f"whole/{model}", "hf", [
        Run("inspect SRC", says=f"problem.*{said}", never_says=r"loads in\s+transformers"),
        Run("convert SRC OUT --to megatron --unknown keep", says=rf"warning: {said}[\s\S]*loads in\s+Megatron-Core"),
        Run("convert OUT OUT2 --to hf --unknown keep", says=f"warning: {said}", never_says=r"loads in\s+transformers"),
        Run("convert SRC OUT --drop vision", never_says="beside its language model"),
    ], change=without(*names), note=f"without {names[0]}")


def of_section(section: str, **fields: object):
    """Sets fields of an object in config.json."""

    def change(source: pathlib.Path) -> None:
        path = source / "config.json"
        config = json.loads(path.read_text())
        inner = config
        for word in section.split("."):
            inner = inner[word]
        inner.update(fields)
        path.write_text(json.dumps(config))

    return change


def contradicts(model: str, section: str, field: str, value: int, says: str) -> Case:
    return Case(f"whole/{model}", "hf", [
        Run("inspect SRC", says=f"problem.*{says}", never_says=r"loads in\s+transformers"),
        Run("convert SRC OUT --to megatron --unknown keep", says=f"warning: {says}"),
    ], change=of_section(section, **{field: value}), note=f"{field} {value}")


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
    # A whole part is missed where another one is there.
    Case("whole/qwen3_omni_moe", "hf", [
        Run("inspect SRC", says=r"'thinker\.audio_tower\..*' and \d+ more tensors are missing"),
    ], change=without_all("thinker.audio_tower."), note="without what hears"),
    contradicts("glm4v_moe", "vision_config", "intermediate_size", 24,
                r"'model\.visual\.merger\.down_proj\.weight' is BF16 \[40, 20\], but config\.json makes it \[40, 24\]"),
    contradicts("glm4v_moe", "vision_config", "depth", 2, r"'model\.visual\.blocks\.1\.attn\.proj\.weight' and 6 more"),
    *(Case(f"whole/{model}", "hf", [Run("inspect SRC", never_says="beside its language model")], note="all is there")
      for model in ("glm4v_moe", "kimi_k25", "qwen3_omni_moe")),
    Case("whole/glm4v_moe", "hf", [Run("convert SRC OUT --to megatron", never_says="beside its language model")],
         change=without_all("model.visual."), note="a language model alone"),
]
