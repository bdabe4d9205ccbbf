"""Quantized models as transformers runs them on a CPU, and the models that they decode to: the same logits, bit for bit."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mxfp4Config

from test_quantized_moves import checkpoint

KINDS = ["ct_int4_g32", "fp8_channel", "fp8_per_tensor", "mxfp4_gpt_oss"]
# A scale of an expert in each, of which two values are exchanged.
SCALES = {
    "ct_int4_g32": "model.layers.1.mlp.experts.0.gate_proj.weight_scale",
    "fp8_channel": "model.layers.1.mlp.experts.0.gate_proj.weight_scale",
    "mxfp4_gpt_oss": "model.layers.1.mlp.experts.gate_up_proj_scales",
}


def quantized(kind, path):
    """The fixture, whose inputs nobody quantizes: that would change what the same weights compute."""
    source = checkpoint(kind, path)
    config = json.loads((source / "config.json").read_text())
    for group in config["quantization_config"].get("config_groups", {}).values():
        group["input_activations"] = None
    (source / "config.json").write_text(json.dumps(config))
    return source


def logits(path, **options):
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.bfloat16, output_loading_info=True, **options)
    unexpected = [name for name in info["unexpected_keys"] if not name.endswith("input_scale")]
    assert not info["missing_keys"] and not info["mismatched_keys"] and not unexpected
    with torch.no_grad():
        return model(torch.arange(24).reshape(3, 8)).logits


def logits_of_quantized(kind, path):
    return logits(path, **({"quantization_config": Mxfp4Config(dequantize=True)} if "mxfp4" in kind else {}))


@pytest.mark.parametrize("kind", KINDS)
def test_decoded_models_compute_the_same(glu, tmp_path, kind):
    source = quantized(kind, tmp_path / "source")
    wanted = logits_of_quantized(kind, source)
    assert torch.isfinite(wanted).all() and wanted.abs().max() > 0.1
    decoded = glu.convert(source, "--decode", "bf16", "--force")
    assert torch.equal(logits(decoded), wanted)


@pytest.mark.parametrize("kind", SCALES)
def test_exchanged_scales_change_the_logits(tmp_path, kind):
    """Shows that the test above would see it."""
    source = quantized(kind, tmp_path / "source")
    wanted = logits_of_quantized(kind, source)
    for file in source.glob("model*.safetensors"):
        tensors = load_file(file)
        if SCALES[kind] in tensors:
            scale = tensors[SCALES[kind]]
            scale.copy_(scale.flip(-2))
            save_file(tensors, file, metadata={"format": "pt"})
    assert not torch.equal(logits_of_quantized(kind, source), wanted)
