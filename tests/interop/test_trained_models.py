"""What Megatron saves after training, converted for transformers: no record of an earlier conversion tells what it was.

A model goes to Megatron, which loads it and saves it anew as its training loop does: with one key for all layers where
they are alike, a padded vocabulary, its arguments, and no more than that. From the arguments alone, or with the model's
own config.json beside the checkpoint, it must come back to what transformers computed.
"""

import os
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file

import gpt_judge
import tiny_models
from glu_program import Program, assert_same, load_safetensors, need

PADDED = 128
# Like layers get one key, if their pattern is not spelled out.
SPELLED = ("deepseek_v3", "qwen3_next", "qwen3_next_mtp", "dots1")
WITH_CONFIG = ("qwen3_moe", "gpt_oss", "deepseek_v3", "qwen3_next", "nemotron_h")
# A window among the saved arguments is taken for gpt-oss's; other families with one are refused.
FAMILIES = [name for name in tiny_models.FAMILIES if name != "mixtral_window"]
# Megatron has no place for ERNIE's correction bias: it comes back without one, and transformers starts it at zero.
ZERO_BIAS = {"ernie4_5_moe": "moe_statics.e_score_correction_bias"}
# The arguments fit models of other types as well: those with norms of q and k and a sigmoid, and those of them with MTP.
NORMED_MTP = "glm4_moe|hy_v3|bailing_moe_v2"
NORMED = f"{NORMED_MTP}|dots1|exaone_moe"
BIASED = "glm4_moe|bailing_moe_v2"
LATENT_MTP = "deepseek_v3|glm4_moe_lite|sarvam_mla"
LATENT = f"{LATENT_MTP}|kimi_k2"
AMBIGUOUS = {
    "mixtral": "mixtral|granitemoe", "granitemoe": "mixtral|granitemoe",
    "deepseek_v3": LATENT, "moonlight": LATENT, "glm4_moe_lite": LATENT, "sarvam_mla": LATENT,
    "deepseek_v3_mtp": LATENT_MTP,
    "dots1": NORMED, "hy_v3": NORMED, "hy_v3_mtp": NORMED_MTP, "solar_open": f"{BIASED}|solar_open|glm4v_moe_text",
    "glm4_moe": BIASED, "glm4_moe_mtp": BIASED,
    "qwen3_next": "qwen3_next|qwen3_5_moe_text", "qwen3_next_mtp": "qwen3_next|qwen3_5_moe_text",
    "qwen3_5_moe_text": "qwen3_next|qwen3_5_moe_text",
}  # fmt: skip
# transformers saves what the hub packs, which the way back does.
AS_SAVED = {"qwen3_5_moe_text": ("--experts", "indexed", "--glu", "split")}


def orders(family):
    """Without a gate there is none."""
    is_gated = tiny_models.FAMILIES[family].model_type != "nemotron_h"
    return ("--from-glu", "contiguous", "--from-shared-glu", "contiguous") if is_gated else ()


def trainer_arguments(lines, spell_layers):
    """Those of a training script: another vocabulary, and the pattern of layers where it is needed."""
    left_out = ("--padded-vocab-size", "--make-vocab-size-divisible-by", "--bf16")
    alike = not any("[0]" in line for line in lines if line.startswith("--moe-layer-freq"))
    left_out += ("--moe-layer-freq",) if alike and not spell_layers else ()
    kept = [line for line in lines if line.split()[0] not in left_out]
    return "\n".join([*kept, f"--padded-vocab-size {PADDED}"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Per family: the source, the trainer's directory, and the logits that Megatron computed."""
    need("megatron-core")
    folder = tmp_path_factory.mktemp("trained")
    (folder / "out").mkdir()
    program = Program(os.environ["GLU_CKPT"], folder / "out")
    jobs, places = [], {}
    for family in FAMILIES:
        source, run = folder / family, folder / f"{family}-run"
        tiny_models.save(family, source)
        there = program.convert(source, "--to", "megatron")
        lines = tiny_models.judged_arguments(family, (there / "megatron_args.txt").read_text()).splitlines()
        iteration, output = run / "iter_0000100", folder / f"{family}.safetensors"
        iteration.mkdir(parents=True)
        (run / "latest_checkpointed_iteration.txt").write_text("100")
        places[family] = source, run, output
        jobs.append({
            "name": family, "checkpoint": str(there / "release"), "save": str(iteration),
            "arguments": trainer_arguments(lines, family in SPELLED),
            "ids": tiny_models.token_ids().tolist(), "output": str(output),
            "wide_norms": tiny_models.FAMILIES[family].wide_norms,
        })  # fmt: skip
    said = gpt_judge.run(folder, jobs)
    for family, found in said.items():
        assert "error" not in found, (family, found["error"])
        assert (found["missing"], found["shapes"]) == ([], {}), family
    return places


def load(path):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    return model.eval(), info


@pytest.mark.parametrize("family", WITH_CONFIG)
def test_a_trained_model_goes_to_transformers(glu, trained, tmp_path, family):
    source, run, _ = trained[family]
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/hf").mkdir()
    shutil.copy(source / "config.json", tmp_path / "run/hf")
    back = glu.convert(tmp_path / "run", "--to", "hf", *orders(family))
    assert_same(load_safetensors(back), load_safetensors(source))
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()
    model, info = load(back)
    assert not any(info.values()), info
    assert torch.equal(tiny_models.logits(model), tiny_models.logits(tiny_models.make(family)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_arguments_alone_make_a_configuration(glu, trained, family):
    source, run, output = trained[family]
    model_type = tiny_models.FAMILIES[family].model_type
    target = f"hf:{model_type}" if family in AMBIGUOUS else "hf"
    back = glu.convert(run, "--to", target, *orders(family))
    as_saved = glu.convert(run, "--to", target, *orders(family), *AS_SAVED[family]) if family in AS_SAVED else back
    expected, zero = load_safetensors(source), ZERO_BIAS.get(family, "no such key")
    lost = [name for name in expected if name.endswith(zero)]
    assert_same(load_safetensors(as_saved), {name: expected[name] for name in expected if name not in lost})
    model, info = load(back)
    # transformers' module for the bias is inside of the router, under another name than the hub's.
    missing = {name.replace("mlp.gate.moe_statics", "mlp.moe_statics") for name in info["missing_keys"]}
    assert missing == set(lost) and not info["mismatched_keys"], info
    assert bool(lost) == (family in ZERO_BIAS) == ("starts it at zero" in glu.warnings)
    assert bool(info["unexpected_keys"]) == tiny_models.has_unexpected(family), info
    logits = tiny_models.logits(model)
    of_megatron = load_file(output)["logits"][..., : tiny_models.VOCABULARY]
    assert (logits - of_megatron).abs().max() <= tiny_models.TOLERANCE
    assert torch.equal(logits, tiny_models.logits(tiny_models.make(family)))


@pytest.mark.parametrize("family", AMBIGUOUS)
def test_the_type_is_asked_for_with_all_else_that_is_unknown(glu, trained, family):
    _, run, _ = trained[family]
    out = glu.fresh()
    said = glu.run("convert", run, out, "--to", "hf", "-q", status=4).stderr
    assert set(re.findall(r"--to hf:(\w+)", said.splitlines()[0])) == set(AMBIGUOUS[family].split("|"))
    # Megatron-Core 0.19 saves the order of gate and up, 0.16.1 (Moonlight's) has no argument for it.
    order = " --from-glu ORDER --from-shared-glu ORDER" if family == "moonlight" else ""
    assert said.splitlines()[-1].strip() == f"glu-ckpt convert {run} {out} --to hf:TYPE -q{order}"
    assert not out.exists()


def test_another_type_than_the_arguments_describe_is_refused(glu, trained):
    _, run, _ = trained["qwen3_moe"]
    said = glu.run("convert", run, glu.fresh(), "--to", "hf:mixtral", "-q", status=4).stderr
    assert "qk_layernorm" in said and "--from-config" in said
