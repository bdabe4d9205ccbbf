"""transformers: models that it saves are converted to other layouts and formats and back, and it loads them again."""

import pytest
import torch
import transformers

from glu_program import assert_same, load_safetensors

COMMON = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 64, "intermediate_size": 64, "num_experts_per_tok": 2, "pad_token_id": 0,
}  # fmt: skip
MEGATRON = ("--naming", "megatron", "--experts", "grouped", "--glu", "interleaved:32")

# By model_type: what its configuration needs beside COMMON, and the options that lead back to its own layout.
FAMILIES = {
    "qwen3_moe": ({"num_experts": 4, "moe_intermediate_size": 64}, ("indexed", "split")),
    "qwen2_moe": (
        {"num_experts": 4, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
        ("indexed", "split"),
    ),
    "mixtral": ({"num_local_experts": 4}, ("indexed", "split")),
    "gpt_oss": ({"num_local_experts": 4, "layer_types": ["full_attention"] * 2}, ("grouped", "interleaved:1")),
    "granitemoe": ({"num_local_experts": 4}, ("grouped", "contiguous")),
    "llama4_text": (
        {"num_local_experts": 4, "intermediate_size_mlp": 64, "interleave_moe_layer_step": 1},
        ("grouped", "contiguous"),
    ),
}


def make_model(model_type):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **(COMMON | FAMILIES[model_type][0]))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    # As made, biases and norms are constants, in which rows could trade places unseen.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    return model


def logits(model):
    tokens = torch.arange(24).reshape(2, 12) * 7 % 96
    with torch.no_grad():
        return model(input_ids=tokens).logits


def back_options(model_type):
    experts, glu = FAMILIES[model_type][1]
    return ("--naming", f"hf:{model_type}", "--experts", experts, "--glu", glu, "--format", "safetensors")


# The ways out; the way back is the family's own layout in safetensors.
WAYS = {
    "megatron": MEGATRON,
    "megatron-torch": (*MEGATRON, "--format", "torch"),
    "megatron-torch-dist": (*MEGATRON, "--format", "torch-dist"),
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Models and where they are saved, by model_type; each made once."""
    made = {}

    def get(model_type):
        if model_type not in made:
            model = make_model(model_type)
            path = tmp_path_factory.mktemp("hf") / model_type
            model.save_pretrained(path)
            made[model_type] = model, path
        return made[model_type]

    return get


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("model_type", FAMILIES)
def test_model_survives_another_layout(glu, pretrained, model_type, way):
    model, path = pretrained(model_type)
    there = glu.convert(path, *way)
    back = glu.convert(there, *back_options(model_type))
    assert_same(load_safetensors(back), load_safetensors(path))
    load = transformers.AutoModelForCausalLM.from_pretrained
    again, info = load(back, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(info.values()), info
    assert_same(again.state_dict(), model.state_dict())
    assert torch.equal(logits(again.eval()), logits(model))


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
def test_from_pretrained_reads_bin_files(glu, pretrained, model_type):
    model, path = pretrained(model_type)
    to = glu.convert(path, "--format", "torch")
    again = transformers.AutoModelForCausalLM.from_pretrained(to, dtype=torch.bfloat16, use_safetensors=False)
    assert_same(again.state_dict(), model.state_dict())


def test_packed_experts_of_one_family_load_too(glu, pretrained):
    """transformers holds experts packed in memory; qwen3_moe's files may hold them so as well."""
    model, path = pretrained("qwen3_moe")
    to = glu.convert(path, "--experts", "grouped", "--glu", "contiguous")
    again = transformers.AutoModelForCausalLM.from_pretrained(to, dtype=torch.bfloat16)
    assert_same(again.state_dict(), model.state_dict())
    assert torch.equal(logits(again.eval()), logits(model))
