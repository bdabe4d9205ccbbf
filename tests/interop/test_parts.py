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


PRUNED = {"qwen3_moe": [6, 1, 3], "deepseek_v3": [0, 2, 3, 5], "gpt_oss": [5, 0, 2, 1], "minimax_m2": [4, 0, 1],
          "olmoe": [5, 1, 3], "qwen3_next": [1, 4, 2]}


@pytest.mark.parametrize("family", PRUNED)
def test_a_model_of_some_experts_computes_what_those_do(glu, family):
    """The model beside it has its packed experts and its routers' rows taken out in torch."""
    need("transformers")
    source, kept = WHOLE / family / "hf", PRUNED[family]
    drop = ("--drop", "mtp") if family == "deepseek_v3" else ()
    part, loaded = load(glu.convert(source, "--keep-experts", ",".join(map(str, kept)), *drop))
    assert not any(loaded.values()), loaded
    model, _ = load(source)
    changed = 0
    for name, module in model.named_modules():
        if name.endswith("experts") and hasattr(module, "gate_up_proj"):
            for field in list(module._parameters):
                setattr(module, field, torch.nn.Parameter(getattr(module, field).data[kept]))
            module.num_experts = len(kept)
            changed += 1
        elif name.endswith((".gate", ".router")) and hasattr(module, "weight") and module.weight.shape[0] > len(kept):
            for field in list(module._parameters):
                setattr(module, field, torch.nn.Parameter(getattr(module, field).data[kept]))
            for field, buffer in list(module._buffers.items()):
                module._buffers[field] = buffer[kept]
            for field in ("num_experts", "n_routed_experts"):
                if hasattr(module, field):
                    setattr(module, field, len(kept))
        elif hasattr(module, "e_score_correction_bias"):
            module._buffers["e_score_correction_bias"] = module.e_score_correction_bias[kept]
        if hasattr(module, "n_routed_experts"):
            module.n_routed_experts = len(kept)
    assert changed > 0
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(part.eval()(tokens, use_cache=False).logits, model.eval()(tokens, use_cache=False).logits)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss", "minimax_m2", "olmoe", "qwen3_next"])
def test_a_padded_model_computes_the_same(glu, family):
    need("transformers")
    source = WHOLE / family / "hf"
    padded, loaded = load(glu.convert(source, "--pad-experts", "128"))
    assert not loaded["missing_keys"] and not loaded["mismatched_keys"], loaded
    model, _ = load(source)
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        torch.testing.assert_close(padded.eval()(tokens, use_cache=False).logits,
                                   model.eval()(tokens, use_cache=False).logits, rtol=1e-5, atol=1e-5)


def test_dtypes_are_those_that_torch_makes(glu, tmp_path):
    need("safetensors")
    from safetensors.torch import load_file, save_file

    source, wide = WHOLE / "qwen3_moe" / "hf", tmp_path / "wide"
    wide.mkdir()
    (wide / "config.json").write_bytes((source / "config.json").read_bytes())
    torch.manual_seed(3)
    tensors = {name: tensor.float() * (1 + torch.rand(tensor.shape) / 100)
               for file in source.glob("*.safetensors") for name, tensor in load_file(file).items()}
    save_file(tensors, wide / "model.safetensors", {"format": "pt"})
    for word, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        out = glu.convert(wide, "--dtype", f"router=f32,*={word}", "--allow-narrowing")
        for file in out.glob("*.safetensors"):
            for name, tensor in load_file(file).items():
                right = tensors[name] if "mlp.gate." in name else tensors[name].to(dtype)
                assert tensor.dtype == right.dtype and torch.equal(tensor, right), name
