"""Parts of models, loaded by transformers: their logits are those of the model with the other layers taken out."""

import pathlib

import pytest
import torch

from glu_program import need

WHOLE = pathlib.Path(__file__).parents[2] / "testdata" / "whole"

CASES = [("qwen3_moe", 0, 1), ("deepseek_v3", 0, 2), ("qwen3_next", 0, 2), ("minimax_m2", 1, 2), ("gpt_oss", 0, 1),
         ("olmoe", 0, 1), ("qwen3", 1, 2)]


def load(path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, output_loading_info=True)


@pytest.mark.parametrize("family, first, end", CASES)
def test_a_part_computes_what_its_layers_do(glu, family, first, end):
    need("transformers")
    source = WHOLE / family / "hf"
    drop = ("--drop", "mtp") if family == "deepseek_v3" else ()
    part, loaded = load(glu.convert(source, "--layers", f"{first}-{end - 1}", *drop))
    assert not any(loaded.values()), loaded
    model, _ = load(source)
    model.model.layers = model.model.layers[first:end]
    model.config.num_hidden_layers = end - first
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[first:end]
    for number, layer in enumerate(model.model.layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = number
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(part.eval()(tokens, use_cache=False).logits, model.eval()(tokens, use_cache=False).logits)
