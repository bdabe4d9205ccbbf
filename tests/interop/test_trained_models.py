"""What Megatron saves after training, converted for transformers: no record of an earlier conversion tells what it was.

A model goes to Megatron, which loads it and saves it anew as its training loop does: with one key for all layers where
they are alike, a padded vocabulary, its arguments, and no more than that. Beside it lies the model's config.json.
"""

import os
import shutil

import pytest
import torch
import transformers

import gpt_judge
import tiny_models
from glu_program import Program, assert_same, load_safetensors

PADDED = 128
# Like layers get one key, if their pattern is not spelled out.
FAMILIES = {"qwen3_moe": False, "gpt_oss": False, "deepseek_v3": True, "qwen3_next": True}


def trainer_arguments(lines, spell_layers):
    """Those of a training script: another vocabulary, and the pattern of layers where it is needed."""
    left_out = ("--padded-vocab-size", "--make-vocab-size-divisible-by", "--bf16")
    left_out += () if spell_layers else ("--moe-layer-freq",)
    kept = [line for line in lines if line.split()[0] not in left_out]
    return "\n".join([*kept, f"--padded-vocab-size {PADDED}"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Per family: the source, and the trainer's directory."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("trained")
    (folder / "out").mkdir()
    program = Program(os.environ["GLU_CKPT"], folder / "out")
    jobs, places = [], {}
    for family, spell_layers in FAMILIES.items():
        source, run = folder / family, folder / f"{family}-run"
        tiny_models.save(family, source)
        there = program.convert(source, "--to", "megatron")
        lines = (there / "megatron_args.txt").read_text().splitlines()
        iteration = run / "iter_0000100"
        iteration.mkdir(parents=True)
        (run / "latest_checkpointed_iteration.txt").write_text("100")
        (run / "hf").mkdir()
        shutil.copy(source / "config.json", run / "hf")
        places[family] = source, run
        jobs.append({
            "name": family, "checkpoint": str(there / "release"), "save": str(iteration),
            "arguments": trainer_arguments(lines, spell_layers),
        })  # fmt: skip
    said = gpt_judge.run(folder, jobs)
    for family, found in said.items():
        assert "error" not in found, found["error"]
        assert (found["missing"], found["shapes"]) == ([], {})
    return places


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def test_a_trained_model_goes_to_transformers(glu, trained, family):
    source, run = trained[family]
    back = glu.convert(run, "--to", "hf", "--from-glu", "contiguous", "--from-shared-glu", "contiguous")
    assert_same(load_safetensors(back), load_safetensors(source))
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        back, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    assert torch.equal(tiny_models.logits(model.eval()), tiny_models.logits(tiny_models.make(family)))
