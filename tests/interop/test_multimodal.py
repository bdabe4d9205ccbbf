"""Language models inside multimodal ones: they are converted like any other, and what sees and hears travels.

transformers makes and saves the whole model; Megatron judges the language model in it, as in test_whole_models.py.
"""

import copy
import os
import pathlib
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import gpt_judge
import tiny_models
from glu_program import Program, assert_same, load_safetensors, need

TEXT = {name: value for name, value in tiny_models.COMMON.items() if name != "tie_word_embeddings"}
VISION = {"depth": 1, "hidden_size": 24, "num_heads": 2, "intermediate_size": 36, "out_hidden_size": 64,
          "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}  # fmt: skip
LLAMA_VISION = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 96,
                "vision_output_dim": 40, "projector_input_dim": 40, "projector_output_dim": 40, "image_size": 28}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 50000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
CONFIGS = {
    "qwen3_vl_moe": {
        "text_config": TEXT | tiny_models.QWEN | {"norm_topk_prob": True, "rope_parameters": ROPE},
        "vision_config": VISION,
        "image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93,
    },
    "qwen3_5_moe": {
        "text_config": TEXT | tiny_models.GATED_DELTA_NET
        | {"rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}},
        "vision_config": VISION,
        "image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93,
    },
    "glm4v_moe": {
        # The sections that its class has where a configuration says none.
        "text_config": TEXT | tiny_models.GLM | {
            "head_dim": 128, "rope_parameters": ROPE | {"mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}},
        "vision_config": {"depth": 1, "hidden_size": 24, "num_heads": 2, "intermediate_size": 36, "out_hidden_size": 64,
                          "image_size": 16, "patch_size": 4},
        "image_token_id": 90, "video_token_id": 91,
    },
    "kimi_k25": {
        "text_config": TEXT | tiny_models.DEEPSEEK | {
            "model_type": "deepseek_v3", "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0,
            "rope_parameters": tiny_models.yarn(mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0)},
        "vision_config": {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 36,
                          "patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4, "pos_emb_time": 2},
        "projection_hidden_size": 24, "image_token_id": 90, "video_token_id": 91,
    },
    "mistral3": {
        # Queries grow with their position from original_max_position_embeddings on.
        "text_config": TEXT | tiny_models.DEEPSEEK | {
            "model_type": "mistral4", "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "rope_parameters": tiny_models.yarn(mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0,
                                                llama_4_scaling_beta=0.1, partial_rotary_factor=8 / 24)},
        "vision_config": {"model_type": "pixtral", "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1,
                          "intermediate_size": 36, "image_size": 16, "patch_size": 4},
        "image_token_index": 90, "spatial_merge_size": 2, "tie_word_embeddings": False,
    },
    "qwen3_omni_moe": {
        "thinker_config": {
            "text_config": TEXT | tiny_models.QWEN | {"norm_topk_prob": True, "rope_parameters": ROPE},
            "vision_config": VISION | {"patch_size": 2},
            "audio_config": {"encoder_layers": 1, "d_model": 8, "encoder_attention_heads": 2, "encoder_ffn_dim": 12,
                             "num_mel_bins": 8, "output_dim": 64, "max_source_positions": 16, "n_window": 4,
                             "downsample_hidden_size": 4, "conv_chunksize": 4},
            "image_token_id": 90, "video_token_id": 91, "audio_token_id": 92,
        },
        "enable_audio_output": False,
    },
    "llama4": {
        "text_config": TEXT | tiny_models.FAMILIES["llama4_text"].config,
        "vision_config": LLAMA_VISION, "image_token_index": 90, "boi_token_index": 91, "eoi_token_index": 92,
    },
}  # fmt: skip


# The language model, and what stands in front of its keys.
TYPES = {
    "qwen3_vl_moe": "qwen3_vl_moe_text", "qwen3_5_moe": "qwen3_5_moe_text", "kimi_k25": "deepseek_v3",
    "mistral3": "mistral4", "glm4v_moe": "glm4v_moe_text", "qwen3_omni_moe": "qwen3_omni_moe_text",
    "llama4": "llama4_text",
}  # fmt: skip
ROOTS = {
    "qwen3_vl_moe": "model.language_model.", "qwen3_5_moe": "model.language_model.",
    "glm4v_moe": "model.language_model.", "qwen3_omni_moe": "thinker.model.", "kimi_k25": "language_model.model.",
    "llama4": "language_model.model.", "mistral3": "language_model.model.",
}  # fmt: skip
# Those whose language model transformers has a class for, and what finds it: a trainer's arguments make its
# config.json.
INNER = {"glm4v_moe": "AutoModel", "mistral3": "AutoModelForImageTextToText"}
# It makes what it holds in memory of the hub's experts for the whole model alone.
AS_HELD = {"glm4v_moe": ("--experts", "grouped", "--glu", "contiguous")}
# transformers 5.24.0 turns the hub's names of Kimi-K2.5 round wrongly when it saves them.
AS_SAVED = {
    "language_model.model.layers.": "language_model.model.blocks.", "mm_projector.": "model.mm_projector.",
    "vision_tower.patch_embed.": "vision_tower.encoder.patch_embed.",
}  # fmt: skip


def spell_as_hub(folder):
    """Gives a saved Kimi-K2.5 the hub's names; what transformers wrote stays in a folder beside it."""
    shutil.copytree(folder, f"{folder}-saved")
    tensors, hub = load_safetensors(folder), {}
    for name, tensor in tensors.items():
        for right, wrong in AS_SAVED.items():
            name = name.replace(wrong, right) if name.startswith(wrong) else name
        hub[name] = tensor
    assert any(name.startswith("language_model.model.layers.") for name in hub) and hub.keys() != tensors.keys()
    save_file(hub, folder / "model.safetensors", {"format": "pt"})


@torch.no_grad()
def make(name, folder):
    config = transformers.AutoConfig.for_model(name, **copy.deepcopy(CONFIGS[name]))
    config._attn_implementation = "eager"
    omni = transformers.Qwen3OmniMoeForConditionalGeneration
    make_it = omni._from_config if name == "qwen3_omni_moe" else transformers.AutoModelForImageTextToText.from_config
    model = make_it(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    for key, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            tensor.copy_(tiny_models._values(key, tensor.shape, TYPES[name], generator))
    model.save_pretrained(folder)
    if name == "kimi_k25":
        spell_as_hub(folder)
    return model


def is_other(name, key):
    return not key.startswith((ROOTS[name], "lm_head.", "language_model.lm_head.", "thinker.lm_head."))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Per model: it, its directory, and Megatron's form of that."""
    folder = tmp_path_factory.mktemp("multimodal")
    (folder / "out").mkdir()
    program = Program(os.environ["GLU_CKPT"], folder / "out")
    made = {}
    for name in CONFIGS:
        model = make(name, folder / name)
        made[name] = model, folder / name, program.convert(folder / name, "--to", "megatron", "--unknown", "keep")
    return made


@pytest.fixture(scope="module")
def judged(models, tmp_path_factory):
    need("megatron-core")
    folder = tmp_path_factory.mktemp("judge")
    jobs = [{
        "name": name, "checkpoint": str(there / "release"), "arguments": (there / "megatron_args.txt").read_text(),
        "ids": tiny_models.token_ids().clamp(max=89).tolist(), "output": str(folder / f"{name}.safetensors"),
    } for name, (_, _, there) in models.items()]  # fmt: skip
    for job in jobs:
        if job["name"] in INNER:
            job["save"] = str(folder / f"{job['name']}-run")
            pathlib.Path(job["save"]).mkdir()
    said = gpt_judge.run(folder, jobs)
    return {job["name"]: said[job["name"]] | {"output": job["output"], "save": job.get("save")} for job in jobs}


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


def logits(model):
    # The whole of transformers 5.24.0's Llama 4 looks for pictures' outputs in a text's, which has none.
    model = model.language_model if model.config.model_type == "llama4" else getattr(model, "thinker", model)
    with torch.no_grad():
        return model(input_ids=tiny_models.token_ids().clamp(max=89)).logits.float()


def test_without_being_told_what_sees_is_refused_by_name(glu, models, name):
    out = glu.fresh()
    said = glu.run("convert", models[name][1], out, "--to", "megatron", "-q", status=4).stderr
    assert "--unknown keep" in said and any(key in said for key in load_safetensors(models[name][1]) if is_other(name, key))
    assert not out.exists()


def test_megatron_computes_what_the_language_model_computes(models, judged, name):
    found = judged[name]
    assert "error" not in found, found["error"]
    assert (found["missing"], found["shapes"], found["missing_extra_states"]) == ([], {}, [])
    others = {f"glu_ckpt.unknown.{key}" for key in load_safetensors(models[name][1]) if is_other(name, key)}
    assert set(found["unexpected"]) == others and others
    assert (load_file(found["output"])["logits"] - logits(models[name][0])).abs().max() <= 2e-5


@pytest.mark.parametrize("name", INNER)
def test_what_megatron_saved_of_the_language_model_makes_its_configuration(glu, models, judged, name):
    model, source, _ = models[name]
    order = ("--from-glu", "contiguous", "--from-shared-glu", "contiguous")
    back = glu.convert(judged[name]["save"], "--to", f"hf:{TYPES[name]}", *order)
    tensors = load_safetensors(back)
    whole = {key: tensor for key, tensor in load_safetensors(source).items() if not is_other(name, key)}
    of_text = {key.replace(ROOTS[name], "model.").replace("language_model.lm_head", "lm_head"): tensor
               for key, tensor in whole.items()}  # fmt: skip
    assert_same(tensors, of_text)
    if name in AS_HELD:
        back = glu.convert(judged[name]["save"], "--to", f"hf:{TYPES[name]}", *order, *AS_HELD[name])
    inner, info = getattr(transformers, INNER[name]).from_pretrained(
        back, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    # The layers of the first alone have a class, without the head that makes logits.
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert info["unexpected_keys"] == ({"lm_head.weight"} if name == "glm4v_moe" else set())
    with torch.no_grad():
        found = inner.eval()(input_ids=tiny_models.token_ids().clamp(max=89))
        computed = found.last_hidden_state @ tensors["lm_head.weight"].T if name == "glm4v_moe" else found.logits
    assert torch.equal(computed, logits(model))
    assert (computed - load_file(judged[name]["output"])["logits"]).abs().max() <= tiny_models.TOLERANCE


def test_every_byte_comes_back_and_computes_the_same(glu, models, name):
    model, source, there = models[name]
    back = glu.convert(there, "--to", "hf", "--unknown", "keep")
    assert_same(load_safetensors(back), load_safetensors(source))
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert glu.digest(there) == glu.digest(source) == glu.digest(back)
    again, info = type(model).from_pretrained(
        back, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    assert torch.equal(logits(again.eval()), logits(model))


def test_what_is_missing_beside_the_language_model_is_named(glu, models, name, tmp_path):
    """Each tensor in turn, and then one of each of other shapes: there is a row in src/families for all of them."""
    source = models[name][1]
    tensors = load_safetensors(source)
    shutil.copy(source / "config.json", tmp_path / "config.json")

    def inspected(changed):
        save_file(changed, tmp_path / "model.safetensors", {"format": "pt"})
        return glu.run("inspect", tmp_path).stdout

    assert "beside its language model" not in inspected(tensors)
    for key in filter(lambda key: is_other(name, key), tensors):
        said = inspected({other: tensor for other, tensor in tensors.items() if other != key})
        assert f"'{key}' is missing, which a {name} model has beside its language model" in said, key
    # Convolutions and positions have axes that no field says.
    for key in filter(lambda key: is_other(name, key) and tensors[key].dim() == 1, tensors):
        said = inspected(tensors | {key: torch.cat([tensors[key]] * 2)})
        assert f"'{key}' is F32 [{2 * len(tensors[key])}], but config.json makes it" in said or "proj.0" in key, key


def test_kimi_k25_as_transformers_saves_it_is_read(glu, models):
    _, source, there = models["kimi_k25"]
    saved = f"{source}-saved"
    said = glu.run("inspect", saved).stdout
    assert "tensors look like" not in said and "vLLM" not in said and "transformers" in said
    assert "vLLM, versions that have 'kimi_k25'" in glu.run("inspect", source).stdout
    for target, expected in (("megatron", None), ("hf", source)):
        out = glu.convert(saved, "--to", target, "--unknown", "keep")
        assert glu.digest(out) == glu.digest(there)
        if expected is not None:
            assert_same(load_safetensors(out), load_safetensors(expected))
