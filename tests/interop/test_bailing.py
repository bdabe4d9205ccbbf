"""Ling and Ring 2 (bailing_moe_v2), of which transformers has no class: their publisher's own code computes the logits.

Megatron-Bridge brings that code along. It asks transformers for two functions that 5.24.0 no longer has, and that are
written here: a causal mask, and the usual frequencies. Megatron-Bridge's own of those forget partial_rotary_factor.
"""

import importlib
import json
import os
import pathlib
import sys
import types

import pytest
import torch
from safetensors.torch import load_file

import gpt_judge
import tiny_models
from glu_program import Program, load_safetensors, need
from test_whole_models import experts_turned, gate_and_up_exchanged, write_wrong

need("megatron-bridge")
need("megatron-core")
SOURCE = pathlib.Path(__file__).parents[2] / "testdata" / "whole" / "bailing_moe_v2" / "hf"
MASKS = "transformers.modeling_attn_mask_utils"


def biases_turned(name, tensor):
    return tensor.roll(1, 0) if name.endswith("router.expert_bias") else tensor


def halves_of_heads_exchanged(name, tensor):
    return tensor.roll(8, 0) if name.endswith("q_layernorm.weight") else tensor


CONTROLS = (experts_turned, gate_and_up_exchanged, biases_turned, halves_of_heads_exchanged)


def causal_mask(attention_mask, shape, embeddings, past, **options):
    assert attention_mask is None and past == 0
    batch, tokens = shape
    return torch.full((batch, 1, tokens, tokens), float("-inf"), dtype=embeddings.dtype).triu(1)


def frequencies(config, device=None):
    width = int(config.head_dim * config.partial_rotary_factor)
    return 1.0 / config.rope_theta ** (torch.arange(0, width, 2).float() / width), 1.0


def publishers_code(monkeypatch):
    """Its configuration and model, without the packages around them, which import trainers."""
    import megatron

    masks = types.ModuleType(MASKS)
    masks.AttentionMaskConverter = masks._prepare_4d_attention_mask = None
    masks._prepare_4d_causal_attention_mask = masks._prepare_4d_causal_attention_mask_for_sdpa = causal_mask
    monkeypatch.setitem(sys.modules, MASKS, masks)
    name = "bailing_of_megatron_bridge"
    package = types.ModuleType(name)
    package.__path__ = [f"{folder}/bridge/models/bailing" for folder in megatron.__path__]
    monkeypatch.setitem(sys.modules, name, package)
    for file in ("configuration_bailing_moe_v2", "modeling_bailing_moe_v2"):
        # They call each other by their whole names.
        whole = f"megatron.bridge.models.bailing.{file}"
        module = importlib.import_module(f"{name}.{file}")
        monkeypatch.setitem(sys.modules, whole, module)
    return module


@torch.no_grad()
def publishers_logits(monkeypatch, ids):
    code = publishers_code(monkeypatch)
    fields = json.loads((SOURCE / "config.json").read_text())
    code._default_rope_init_fn = frequencies
    config = code.BailingMoeV2Config(**fields, pad_token_id=None)
    config._attn_implementation, config.partial_rotary_factor = "eager", fields["partial_rotary_factor"]
    model = code.BailingMoeV2ForCausalLM(config).float().eval()
    tensors = {name: tensor.float() for name, tensor in load_safetensors(SOURCE).items()}
    report = model.load_state_dict(tensors, strict=False)
    assert not report.unexpected_keys and not report.missing_keys, report
    # As a tuple: its class of outputs takes no other.
    return model(input_ids=ids, use_cache=False, return_dict=False)[0]


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bailing")
    there = Program(os.environ["GLU_CKPT"], folder).convert(SOURCE, "--to", "megatron")
    jobs = []
    for control in (None, *CONTROLS):
        name = "right" if control is None else control.__name__
        release = there / "release" if control is None else write_wrong(there / "release", folder / name, control)
        jobs.append({
            "name": name, "checkpoint": str(release), "arguments": (there / "megatron_args.txt").read_text(),
            "output": str(folder / f"{name}.safetensors"), "ids": token_ids().tolist(), "plain": control is not None,
        })  # fmt: skip
    said = gpt_judge.run(folder, jobs)
    for name, found in said.items():
        assert "error" not in found, (name, found["error"])
        assert (found["missing"], found["shapes"]) == ([], {}), name
    return {job["name"]: load_file(job["output"])["logits"] for job in jobs}


def token_ids():
    return tiny_models.token_ids() % 88


def test_megatron_computes_what_the_publishers_code_computes(judged, monkeypatch):
    want = publishers_logits(monkeypatch, token_ids())
    assert judged["right"].shape == want.shape
    assert (judged["right"] - want).abs().max() <= tiny_models.TOLERANCE


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.__name__)
def test_a_wrong_checkpoint_is_seen(judged, control):
    assert (judged[control.__name__] - judged["right"]).abs().max() > 0.01
