"""Megatron-Bridge's mapping is a second judge of whole models: the same bits in every parameter, from another's code.

It reads the Hugging Face model that glu-ckpt converted, and makes the parameters of Megatron's model by its own
bridges, which share nothing with glu-ckpt. What it cannot, or says otherwise, is listed here and must stay so: a newer
one that can is a failure that asks for a shorter list. See bridge_judge.py for what stands in for a GPU's packages.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import test_every_type
import test_multimodal
import tiny_models
from glu_program import Program, need

need("megatron-bridge")
WHOLE = pathlib.Path(__file__).parents[2] / "testdata" / "whole"
# Those that transformers cannot make: as they were published, by hand.
PUBLISHED = ("bailing_moe_v2", "nemotron_h", "qwen3_next")
DROPPED = ["model.layers.3.embed_tokens.weight", "model.layers.3.shared_head.head.weight"]

# No bridge is registered for the architecture.
NO_BRIDGE = {
    "mixtral", "mixtral_window", "qwen2_moe", "deepseek_v32", "dots1", "solar_open", "llama4_text", "granitemoe", "granitemoeshared",
    "llama4", "mistral3",
}  # fmt: skip
# Its bridge of that class is Ministral-3's, whose attention has no latents.
UNASKED = {"mistral3"}
# Fields that its bridges read of published configurations, and that transformers' classes no longer have.
FIELDS = {
    "glm_moe_dsa": {"indexer_rope_interleave": True},
    "hy_v3": {"first_k_dense_replace": 1},
    "hy_v3_mtp": {"first_k_dense_replace": 2},
    "glm4v_moe": {"partial_rotary_factor": 0.5, "use_qk_norm": False},
    "kimi_k2": {"scoring_func": "sigmoid"},
    "kimi_k25": {"architectures": ["KimiK25ForConditionalGeneration"]},
    "whole bailing_moe_v2": {"partial_rotary_factor": 0.5},
}
PREFIXES = dict.fromkeys(test_multimodal.CONFIGS, "language_model.") | {"qwen3_omni_moe": "thinker.language_model."}
# What its mappings leave out, lose or do not read, and why.
UNMAPPED = {
    # Its bridge of Qwen3 has no names for dense layers, which `mlp_only_layers` makes.
    "qwen3_moe_dense_layer": (
        [f"decoder.layers.1.mlp.linear_fc{name}" for name in ("1.layer_norm_weight", "1.weight", "2.weight")],
        [f"model.layers.1.mlp.{name}_proj.weight" for name in ("down", "gate", "up")]
        + ["model.layers.1.post_attention_layernorm.weight"],
    ),
}
# 1 is subtracted in bfloat16, which rounds; glu-ckpt stores the difference in float32.
DIFFERENT = {"whole qwen3_next": [f"decoder.layers.{layer}.self_attention.out_norm.weight" for layer in range(3)]}
# Copies of embedding and head, which Megatron's MTP shares.
UNREAD = dict.fromkeys(("deepseek_v3_mtp", "glm4_moe_mtp"), DROPPED)
# Positions of pictures, which are those of words in a text.
MROPE = {"position_embedding_type": ["mrope", "rope"]}
# Its configuration, and the arguments of glu-ckpt, whose logits are transformers'.
SETTINGS = {
    # It does not know transformers' `mlp_only_layers`.
    "qwen3_moe_dense_layer": {"moe_layer_freq": [1, [1, 0, 1]]},
    # It reads `partial_rotary_factor` beside `rope_parameters`, not inside, where transformers 5 has it.
    "qwen3_next": {"rotary_percent": [1.0, 0.25]},
    "qwen3_next_mtp": {"rotary_percent": [1.0, 0.25]},
    "whole qwen3_next": {"rotary_percent": [1.0, 0.25]},
    # The same, and one shared expert whatever `n_shared_experts` says.
    "glm4_moe": {"rotary_percent": [1.0, 0.5], "moe_shared_expert_intermediate_size": [48, 96]},
    "glm4_moe_mtp": {"rotary_percent": [1.0, 0.5], "moe_shared_expert_intermediate_size": [48, 96]},
    # It takes sigmoid and a fixed base, where transformers has softmax and reads the base.
    "ernie4_5_moe": {
        "rotary_base": [500000.0, 50000], "moe_router_score_function": ["sigmoid", "softmax"],
        "moe_router_enable_expert_bias": [True, None],
    },
    "qwen3_vl_moe": MROPE, "qwen3_5_moe": MROPE,
    "glm4v_moe": MROPE | {"moe_shared_expert_intermediate_size": [48, 96]},
    # It looks for `rope_theta` beside `rope_parameters`.
    "qwen3_omni_moe": MROPE | {"rotary_base": [1000000.0, 50000]},
    # It never ties the head to the embedding; as transformers makes this model, it has no other.
    "kimi_k25": {"share_embeddings_and_output_weights": [None, True]},
}  # fmt: skip


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bridge")
    (folder / "out").mkdir()
    program = Program(os.environ["GLU_CKPT"], folder / "out")
    jobs = []

    def add(name, source, *options, **more):
        there = program.convert(source, "--to", "megatron", *options)
        jobs.append({
            "name": name, "source": str(source), "checkpoint": str(there / "release"),
            "arguments": (there / "megatron_args.txt").read_text(), "published": FIELDS.get(name, {}),
            "prefix": PREFIXES.get(name, ""),
        } | more)  # fmt: skip

    for family in tiny_models.FAMILIES:
        tiny_models.save(family, folder / family)
        add(family, folder / family)
    add("a fault", folder / "qwen3_moe", swap="model.layers.1.self_attn.k_proj.weight")
    add("kimi_k2", as_kimi_k2(folder / "deepseek_v3", folder / "kimi_k2"))
    for name in PUBLISHED:
        add(f"whole {name}", WHOLE / name / "hf")
    for name in test_multimodal.CONFIGS.keys() - UNASKED:
        test_multimodal.make(name, folder / name)
        add(name, folder / name, "--unknown", "keep")
    return run(folder, jobs)


def as_kimi_k2(source, folder):
    """Kimi-K2's layers are DeepSeek-V3's, and transformers has no class for it."""
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    config |= {"model_type": "kimi_k2", "architectures": ["KimiK2ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(folder, jobs):
    """One process judges all: most of its time goes into imports."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    judge = [sys.executable, pathlib.Path(__file__).with_name("bridge_judge.py"), folder / "jobs.json"]
    done = subprocess.run(judge, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    return {found.pop("name"): found for found in said}


NAMES = [*tiny_models.FAMILIES, "kimi_k2", *(f"whole {name}" for name in PUBLISHED), *test_multimodal.CONFIGS]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNASKED])
def test_megatron_bridge_makes_the_same_bits(judged, name):
    found = judged[name]
    assert "error" not in found, found["error"]
    assert ("no bridge" in found) == (name in NO_BRIDGE), found
    if name in NO_BRIDGE:
        return
    unmapped, unread = UNMAPPED.get(name, ([], UNREAD.get(name, [])))
    assert (found["differ"], found["failed"]) == (DIFFERENT.get(name, []), {})
    assert (sorted(found["unmapped"]), found["equal"] > 0) == (unmapped, True)
    assert [key for key in found["unread"] if not is_of_other_senses(name, key)] == unread


def is_of_other_senses(name, key):
    return name in test_multimodal.CONFIGS and test_multimodal.is_other(name, key)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_BRIDGE])
def test_its_configuration_is_that_of_the_arguments(judged, name):
    assert judged[name]["settings"] == SETTINGS.get(name, {})


def test_an_exchanged_half_of_one_tensor_is_seen(judged):
    assert judged["a fault"]["differ"] == ["decoder.layers.1.self_attention.linear_qkv.weight"]
    assert judged["a fault"]["equal"] == judged["qwen3_moe"]["equal"] - 1


def test_what_it_does_not_import_is_no_bridge_of_these(judged):
    # They ask a package of Megatron-Bridge for names that it gathers of all of its trainers.
    assert sorted(judged[""]["not imported"]) == [
        f"megatron.bridge.models.nemotron_{kind}.nemotron_{kind}_bridge" for kind in ("omni", "vl")
    ]


def model_type(name):
    return tiny_models.FAMILIES[name].model_type if name in tiny_models.FAMILIES else name.removeprefix("whole ")


def test_the_documentation_has_each_family_with_its_judge():
    bridges = {model_type(name): "none" if name in NO_BRIDGE else "same" for name in NAMES}
    bridges = {text: bridges[name] for name, text in test_multimodal.TYPES.items()} | bridges
    for types, _, megatron, _, _, said, _ in test_every_type.rows("Families"):
        for name in test_every_type.types_of(types) if megatron != "refused" else []:
            assert bridges[name] == said, name
