"""--stack-layers: one tensor for all layers, as Megatron's GPTModel saves layers that are alike. Its HybridModel, which
is to follow the GPTModel, loads a GPT model from those keys alone. Both must compute what transformers computes.
"""

import os
import re

import pytest
import torch
from safetensors.torch import load_file

import gpt_judge
import tiny_models
from glu_program import Program, assert_same, load_safetensors, need
from test_whole_models import read_torch_dist
from tiny_models import LAYERS

# HybridModel's attention has no norms of queries and keys, no sinks, and no scaling of Llama 3.
IN_HYBRID = {
    "mixtral": "*E",
    "qwen2_moe": "*E",
    "granitemoe": "*E",
    "qwen2": "*-",
    "mistral": "*-",
}
FAMILIES = [*IN_HYBRID, "llama", "qwen3_moe", "gpt_oss", "solar_open", "qwen3_tied"]
STACK = "decoder.layers."


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return Program(os.environ["GLU_CKPT"], tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return {family: (tiny_models.save(family, folder / family), folder / family) for family in FAMILIES}


@pytest.fixture(scope="module")
def stacked(program, sources):
    return {
        family: program.convert(sources[family][1], "--to", "megatron", "--stack-layers") for family in FAMILIES
    }


def hybrid_arguments(text, pattern):
    """The argument file for a HybridModel: its pattern says the number of layers, of which it has two for each one."""
    text = re.sub(r"(?<=freq )\[.*", lambda runs: re.sub(r"\d+(?=\+|$)", lambda n: str(2 * int(n[0])), runs[0]), text)
    words = text.replace(f"--num-layers {LAYERS}\n", f"--num-layers {LAYERS * len(pattern)}\n")
    return words + f"--hybrid-layer-pattern {pattern * LAYERS}\n"


@pytest.fixture(scope="module")
def judged(program, sources, stacked, tmp_path_factory):
    need("megatron-core")
    folder = tmp_path_factory.mktemp("judge")
    jobs = []

    def add(name, path, arguments, **more):
        jobs.append({
            "name": name, "checkpoint": str(path / "release"), "arguments": arguments, "tracker": True,
            "output": str(folder / f"{name}.safetensors"), "ids": tiny_models.token_ids().tolist(),
        } | more)  # fmt: skip

    for family, path in stacked.items():
        text = (path / "megatron_args.txt").read_text()
        add(family, path, text)
        if family in IN_HYBRID:
            add(f"{family}-hybrid", path, hybrid_arguments(text, IN_HYBRID[family]), from_gpt=True)
    numbered = program.convert(sources["mixtral"][1], "--to", "megatron")
    text = (numbered / "megatron_args.txt").read_text()
    add("numbered", numbered, hybrid_arguments(text, "*E"), from_gpt=True)
    said = gpt_judge.run(folder, jobs)
    return {job["name"]: said[job["name"]] | {"output": job["output"]} for job in jobs}


def check_logits(found, model):
    assert "error" not in found, found["error"]
    assert (found["missing"], found["unexpected"], found["shapes"], found["missing_extra_states"]) == ([], [], {}, [])
    got = load_file(found["output"])["logits"]
    assert (got - tiny_models.logits(model)).abs().max() <= tiny_models.TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpt_model_computes_what_transformers_computes(judged, sources, family):
    assert judged[family]["content_metadata"] == {"singleton_local_shards": False, "non_homogeneous_layers": False}
    check_logits(judged[family], sources[family][0])


@pytest.mark.parametrize("family", IN_HYBRID)
def test_a_hybrid_model_computes_what_transformers_computes(judged, sources, family):
    check_logits(judged[f"{family}-hybrid"], sources[family][0])


def test_a_hybrid_model_finds_nothing_under_keys_with_numbers(judged):
    found = judged["numbered"]
    assert "error" not in found, found["error"]
    assert "decoder.layers.mlp.experts.experts.linear_fc1.weight" in found["missing"]


@pytest.mark.parametrize("family", FAMILIES)
def test_its_tensors_are_those_of_the_layers_one_after_the_other(program, sources, stacked, family):
    numbered = read_torch_dist(program.convert(sources[family][1], "--to", "megatron") / "release")
    want = {}
    for name, tensor in numbered.items():
        if not name.startswith(STACK):
            want[name] = tensor
        elif name.startswith(f"{STACK}0."):
            tail = name.removeprefix(f"{STACK}0.")
            want[STACK + tail] = torch.stack([numbered[f"{STACK}{layer}.{tail}"] for layer in range(LAYERS)])
    assert_same(read_torch_dist(stacked[family] / "release"), want)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_comes_back_is_what_went(program, sources, stacked, family):
    back = program.convert(stacked[family], "--to", "hf")
    assert_same(load_safetensors(back), load_safetensors(sources[family][1]))
    assert (back / "config.json").read_bytes() == (sources[family][1] / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("family", "words"),
    [("llama", "HybridModel of Megatron-Core 0.19.2 does not read --use-rope-scaling"),
     ("qwen3_moe", "HybridModel has no norm/q in its attention"),
     ("gpt_oss", "--window-attn-skip-freq counts layers")],
)  # fmt: skip
def test_what_a_hybrid_model_has_not_is_said(program, sources, family, words):
    said = program.run("plan", sources[family][1], program.fresh(), "--to", "megatron", "--stack-layers")
    assert words in said.stdout + said.stderr


def test_the_plan_gives_the_pattern_for_a_hybrid_model(program, sources):
    said = program.run("plan", sources["mixtral"][1], program.fresh(), "--to", "megatron", "--stack-layers")
    assert f"--hybrid-layer-pattern '{'*E' * LAYERS}'" in said.stdout + said.stderr
