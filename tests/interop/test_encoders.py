"""Weights that glu-ckpt encodes, loaded by transformers and compressed-tensors on a CPU: their logits are those of what
glu-ckpt decodes. The bits of the codes are compared with the programs' own in tests/unit/encoded_source_test.cpp."""

import json

import pytest
import torch

from glu_program import need

HF_FORMS = ["fp8:128x128", "fp8:128x128 --encode-as transformers", "fp8:128x128:ue8m0",
            "fp8:128x128:ue8m0 --encode-as transformers"]
COMPRESSED_FORMS = ["fp8:channel", "mxfp4", "mxfp4 --encode-as compressed-tensors", "int4:g32", "int4:g128"]
# transformers 5.24 multiplies experts' FP8 with scales of channels alone, and reads no second scale of theirs.
DENSE_FORMS = ["fp8:128x128 --encode-as compressed-tensors", "mxfp8 --encode-as compressed-tensors",
               "nvfp4 --encode-as compressed-tensors"]
SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 200}
EXPERT_SIZES = {"moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model with experts, and one without."""
    need("transformers")
    import transformers
    torch.manual_seed(0)
    made = {}
    for name, config in (("moe", transformers.Qwen3MoeConfig(**SIZES, **EXPERT_SIZES)),
                         ("dense", transformers.Qwen3Config(**SIZES))):
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.05)
        made[name] = tmp_path_factory.mktemp("encoders") / name
        model.save_pretrained(made[name])
    return made


def logits(path, **options):
    need("transformers")
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **options).eval()
    with torch.no_grad():
        return model(torch.arange(20)[None] * 7 % 200).logits.float()


CASES = ([("moe", form) for form in HF_FORMS + COMPRESSED_FORMS]
         + [("dense", form) for form in HF_FORMS + COMPRESSED_FORMS + DENSE_FORMS])


@pytest.mark.parametrize("kind, form", CASES)
def test_they_load_as_what_they_decode_to(glu, models, kind, form):
    need("transformers")
    import transformers
    out = glu.convert(models[kind], "--encode", *form.split())
    method = json.loads((out / "config.json").read_text())["quantization_config"]["quant_method"]
    if method == "compressed-tensors":
        need("compressed_tensors")
        reading = transformers.CompressedTensorsConfig(run_compressed=False)
    else:
        reading = transformers.FineGrainedFP8Config(dequantize=True)
    theirs = logits(out, quantization_config=reading)
    assert torch.equal(theirs, logits(glu.convert(out, "--decode", "bf16")))
    stored = logits(models[kind])
    assert not torch.equal(theirs, stored) and torch.nn.functional.cosine_similarity(theirs, stored, dim=-1).min() > 0.5
