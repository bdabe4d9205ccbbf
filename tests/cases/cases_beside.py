"""Tensors of what sees and hears beside a language model: one that is missing is named, for programs start it at random."""
import json
import math
import pathlib

from case import TESTDATA, Case, Run, both, tensors_changed
from cases_parts import same_as


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


def with_code2wav(source: pathlib.Path) -> None:
    """Adds what makes sound of the talker's codes, of which the model has one tensor and no words."""
    config = {"codebook_size": 5, "num_quantizers": 2, "hidden_size": 12, "intermediate_size": 20,
              "num_hidden_layers": 2, "upsampling_ratios": [2, 3]}
    whole = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**whole, "code2wav_config": config}))
    hidden, wide, heads = config["hidden_size"], config["intermediate_size"], 8
    layer = {
        "input_layernorm.weight": [hidden], "mlp.down_proj.weight": [hidden, wide], "mlp.gate_proj.weight": [wide, hidden],
        "mlp.up_proj.weight": [wide, hidden], "mlp_layer_scale.scale": [hidden],
        "post_attention_layernorm.weight": [hidden], "self_attn_layer_scale.scale": [hidden],
        "self_attn.k_proj.weight": [heads, hidden], "self_attn.o_proj.weight": [hidden, heads],
        "self_attn.q_proj.weight": [heads, hidden], "self_attn.v_proj.weight": [heads, hidden],
    }
    step = {
        "0.conv.weight": [hidden, hidden, 2], "0.conv.bias": [hidden], "1.gamma": [hidden], "1.norm.weight": [hidden],
        "1.norm.bias": [hidden], "1.dwconv.conv.weight": [hidden, 1, 7], "1.dwconv.conv.bias": [hidden],
        "1.pwconv1.weight": [4 * hidden, hidden], "1.pwconv1.bias": [4 * hidden],
        "1.pwconv2.weight": [hidden, 4 * hidden], "1.pwconv2.bias": [hidden],
    }
    shapes = {"code_embedding.weight": [config["codebook_size"] * config["num_quantizers"], hidden],
              "pre_transformer.norm.weight": [hidden]}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"pre_transformer.layers.{number}.{name}": shape for name, shape in layer.items()}
    for number in range(len(config["upsampling_ratios"])):
        shapes |= {f"upsample.{number}.{name}": shape for name, shape in step.items()}

    def edit(tensors: dict) -> None:
        for name, shape in shapes.items():
            tensors[f"code2wav.{name}"] = "BF16", shape, bytes(2 * math.prod(shape))

    tensors_changed(edit)(source)


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


ALONE = "are missing, which a glm4v_moe model has beside its language model.*--fill-from"


def with_another_head(source: pathlib.Path) -> None:
    """Adds a second head under the key of a model that is a language model alone."""

    def edit(tensors: dict) -> None:
        tensors["lm_head.weight"] = tensors["language_model.lm_head.weight"]

    tensors_changed(edit)(source)


def stands_beside(model: str, root: str, kind: str) -> Case:
    """No stranger: the way on is said, and both ways go on."""
    return Case(f"whole/{model}", "hf", [
        Run("plan SRC OUT --to megatron", 4, says=rf"is a part of what sees, hears or talks beside the language model \('{root}\*'\)"
            r".*--unknown keep.*--drop vision.*--fill-from", never_says="known to have"),
        Run("plan SRC OUT --to megatron --unknown keep"), Run("plan SRC OUT --to megatron --drop vision"),
    ], note=f"{root} is asked about")


CASES = [
    stands_beside("glm4v_moe", r"model\.visual\.", "glm4v_moe"),
    stands_beside("kimi_k25", r"(vision_tower|mm_projector)\.", "kimi_k25"),
    stands_beside("qwen3_omni_moe", r"(thinker\.\w+|talker|code2wav)\.", "qwen3_omni_moe"),
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
    Case("whole/qwen3_omni_moe", "hf", [Run("inspect SRC", never_says="beside its language model")],
         change=with_code2wav, note="all is there with code2wav"),
    Case("whole/qwen3_omni_moe", "hf", [
        Run("inspect SRC", says=r"problem.*'code2wav\.pre_transformer\.norm\.weight' is missing, which a qwen3_omni_moe"),
    ], change=both(with_code2wav, without("code2wav.pre_transformer.norm.weight")), note="code2wav without its norm"),
    # A trainer does not miss it, and programs that read the hub's form do.
    Case("whole/glm4v_moe", "hf", [
        Run("convert SRC OUT --to megatron", never_says="beside its language model"),
        Run("inspect SRC --strict", 3, says=rf"problem.*{ALONE}", never_says=r"loads in\s+transformers"),
        Run("convert OUT OUT2 --to hf", says=rf"warning.*{ALONE}", never_says=r"loads in\s+transformers"),
        Run(f"convert OUT OUT2 --to hf --fill-from {TESTDATA / 'whole/glm4v_moe/hf'}",
            check=same_as("whole/glm4v_moe/hf"), never_says="warning"),
    ], change=without_all("model.visual."), note="a language model alone"),
    # The head stands beside the root of the other keys, and takes the root of the model that it comes into.
    Case("whole/kimi_k25", "hf", [
        Run("convert SRC OUT --to megatron --drop vision"),
        Run("convert OUT OUT2 --to hf --fill-from SRC", check=same_as("whole/kimi_k25/hf"), never_says="warning"),
        Run("verify SRC OUT2"),
    ], note="its tower again after a trainer"),
    Case("whole/kimi_k25", "hf", [
        Run("inspect SRC --strict", 3, says=r"problem.*'lm_head\.weight' is a weight that a kimi_k2 model is not known to",
            never_says=r"loads in\s+transformers"),
    ], change=with_another_head, note="two heads"),
]
