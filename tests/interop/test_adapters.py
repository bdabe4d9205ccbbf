"""Adapters of MoE experts as PEFT trains them, converted, and loaded by PEFT again: the same logits, bit for bit.

Factors are small numbers of few bits, so that no sum of PEFT's products rounds: the orders of its layouts, and the zeros
that some have more, then change no bit."""

import sys

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import tiny_models
from glu_program import assert_same, load_safetensors, need

need("peft")
import peft  # noqa: E402

# Where gptqmodel is installed, PEFT asks for a package more, even if no weight is quantized.
for module in [module for name, module in sys.modules.items() if name.startswith("peft.")]:
    if hasattr(module, "is_gptqmodel_available"):
        module.is_gptqmodel_available = lambda: False

RANK, ALPHA = 2, 8
PACKED = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
FAMILIES = ["qwen3_moe", "mixtral", "gpt_oss"]


@pytest.fixture(params=FAMILIES)
def trained(request, tmp_path):
    """A model, an adapter of its experts and of q_proj, and the logits of both together."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tiny_models.save(request.param, base)
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["q_proj"], target_parameters=PACKED, task_type="CAUSAL_LM")
    model = peft.get_peft_model(open_base(base), config).eval()
    generator = torch.Generator().manual_seed(5)
    for name, values in model.named_parameters():
        if "lora_" in name:
            values.data.copy_(torch.randint(-3, 4, values.shape, generator=generator) / 64)
    model.save_pretrained(adapter)
    return base, adapter, tiny_models.logits(model)


def open_base(path):
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()


def logits_with(base, adapter):
    with_adapter = peft.PeftModel.from_pretrained(open_base(base), adapter).eval()
    return tiny_models.logits(with_adapter)


def is_read_apart(base):
    """PEFT packs factors of single experts where transformers packs the weights of such checkpoints."""
    return open_base(base).config.model_type != "gpt_oss"


def is_apart(adapter):
    return any(".experts.0." in name for name in load_safetensors(adapter))


def test_peft_computes_the_same_with_converted_adapters(glu, trained):
    base, adapter, wanted = trained
    assert (wanted - tiny_models.logits(open_base(base))).abs().max() > 0.01
    assert torch.equal(logits_with(base, adapter), wanted)
    apart = glu.convert(adapter, "--to", "hf", "--experts", "indexed", "--from-config", base / "config.json")
    assert is_apart(apart)
    packed = glu.convert(apart, "--to", "hf", "--experts", "grouped", "--from-config", base / "config.json")
    assert not is_apart(packed)
    assert torch.equal(logits_with(base, packed), wanted)
    assert_same(load_safetensors(packed), load_safetensors(adapter))
    if is_read_apart(base):
        assert torch.equal(logits_with(base, apart), wanted)


@pytest.mark.parametrize("trained", ["qwen3_moe", "mixtral"], indirect=True)
def test_peft_computes_the_same_where_gate_and_up_have_ranks_of_their_own(glu, trained):
    base, adapter, before = trained
    apart = glu.convert(adapter, "--to", "hf", "--from-config", base / "config.json")
    file = apart / "adapter_model.safetensors"
    tensors = load_safetensors(file)
    for name in tensors:
        if name.endswith(("up_proj.lora_A.weight", "w3.lora_A.weight")):
            tensors[name] = tensors[name].flip(1).contiguous()
    save_file(tensors, file, {"format": "pt"})
    wanted = logits_with(base, apart)
    assert not torch.equal(wanted, before)
    options = ["--to", "hf", "--experts", "grouped", "--from-config", base / "config.json"]
    assert "rank" in glu.run("convert", apart, glu.fresh(), *options, status=4).stderr
    grown = glu.convert(apart, *options, "--grow-rank")
    assert torch.equal(logits_with(base, grown), wanted)
    assert torch.equal(logits_with(base, glu.convert(grown, "--to", "hf", "--from-config", base / "config.json")), wanted)


def test_merged_models_compute_what_peft_merges(glu, trained):
    base, adapter, _ = trained
    merged = peft.PeftModel.from_pretrained(open_base(base), adapter).merge_and_unload().eval()
    assert torch.equal(tiny_models.logits(open_base(glu.convert(base, "--merge", adapter))), tiny_models.logits(merged))


def test_exchanged_experts_change_the_logits(trained):
    """Shows that the tests above would see it."""
    base, adapter, wanted = trained
    file = adapter / "adapter_model.safetensors"
    tensors = load_safetensors(file)
    name = next(name for name in tensors if "layers.1." in name and name.endswith("experts.lora_A.weight"))
    tensors[name] = tensors[name].roll(RANK, 0)
    save_file(tensors, file, {"format": "pt"})
    assert not torch.equal(logits_with(base, adapter), wanted)
