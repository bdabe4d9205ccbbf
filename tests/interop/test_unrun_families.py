"""Families that Megatron-Core's GPTModel cannot run as they are: mapped with a warning that says what they need, or refused
by name. transformers makes and saves a tiny model of each."""

import pathlib

import pytest
import torch
import transformers

import tiny_models
from glu_program import assert_same, load_safetensors

COMMON = tiny_models.COMMON | {"num_experts_per_tok": 3}
MAPPED = {
    "olmoe": {"intermediate_size": 48, "num_experts": 8, "norm_topk_prob": False},
    "minimax_m2": {"head_dim": 32, "intermediate_size": 48, "num_local_experts": 8},
}
REFUSED = {
    "hunyuan_v1_moe": ({"head_dim": 32, "intermediate_size": 48, "num_experts": 8, "moe_topk": 3}, "after the rotation"),
    "phimoe": ({"intermediate_size": 48, "num_local_experts": 8}, "sparsemixer"),
}


@torch.no_grad()
def save(model_type, config, folder):
    config = transformers.AutoConfig.for_model(model_type, **COMMON | config)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.copy_(tiny_models._values(name, tensor.shape, model_type, generator))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("model_type", MAPPED)
def test_a_mapped_model_comes_back_and_is_warned_of(glu, tmp_path, model_type):
    source = tmp_path / model_type
    model = save(model_type, MAPPED[model_type], source)
    there = glu.fresh()
    said = glu.run("convert", source, there, "--to", "megatron")
    assert "warning" in said.stderr and "layer spec of Megatron-Bridge" in said.stderr
    assert "loads in    nothing as it is" in said.stdout
    # As Megatron-Bridge's spec calls the norms that span all heads.
    keys = {line.split()[0]: line for line in glu.run("inspect", there, "--tensors").stdout.splitlines() if line}
    assert "[128]" in keys["decoder.layers.0.self_attention.q_layernorm.weight"] or model_type == "olmoe"
    assert "[64]" in keys["decoder.layers.0.self_attention.k_layernorm.weight"] or model_type == "olmoe"
    back = glu.convert(there, "--to", "hf")
    assert_same(load_safetensors(back), load_safetensors(source))
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert glu.digest(there) == glu.digest(source)
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        back, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    assert torch.equal(tiny_models.logits(again.eval()), tiny_models.logits(model))


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_model_that_has_no_place_there_is_refused_by_name(glu, tmp_path, model_type):
    config, reason = REFUSED[model_type]
    source, out = tmp_path / model_type, glu.fresh()
    save(model_type, config, source)
    said = glu.run("convert", source, out, "--to", "megatron", "-q", status=4).stderr
    assert f"'{model_type}'" in said and reason in said
    assert not list(out.parent.glob(out.name + "*"))


def test_the_layer_spec_of_the_documentation_is_the_one_that_is_tried():
    here = pathlib.Path(__file__).resolve().parent
    spec = (here / "wide_norms.py").read_text().split("import torch\n")[1].strip()
    assert spec in (here.parent.parent / "docs/targets.md").read_text()
