"""torchtitan: its own state-dict adapters say which tensors of torchtitan a Hugging Face model is, and back.

`convert --to torchtitan` must give those, to the last bit, and torchtitan's own models must compute of them what
transformers computes. The controls convert models in which two tensors have traded places: the comparison must name both,
and the logits must change.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, save_file

import tiny_models
from glu_program import Program, assert_same, bits, load_safetensors, need

need("torchtitan")

import torchtitan_adapters  # noqa: E402

FAMILIES = ("llama", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3", "deepseek_v3_mtp", "qwen3_5_moe_text")
# Those that torchtitan_judge.py builds.
COMPUTED = ("llama", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3")
# Those whose routers have no bias. torchtitan's models ask for one all the same, and its adapters know none.
WITHOUT_BIAS = ("qwen3_moe", "deepseek_v2", "qwen3_5_moe_text")
EXPERTS = 8

# Per control, two tensors of Hugging Face of one shape, and torchtitan's keys of them.
CONTROLS = {
    "keys-values": (
        "qwen3_moe",
        ("model.layers.1.self_attn.k_proj.weight", "layers.1.attention.qkv_linear.wk.weight"),
        ("model.layers.1.self_attn.v_proj.weight", "layers.1.attention.qkv_linear.wv.weight"),
    ),
    "gate-up": (
        "qwen3_moe",
        ("model.layers.2.mlp.experts.5.gate_proj.weight", "layers.2.moe.routed_experts.inner_experts.w1_EFD"),
        ("model.layers.2.mlp.experts.5.up_proj.weight", "layers.2.moe.routed_experts.inner_experts.w3_EFD"),
    ),
    "two-experts": (
        "deepseek_v3",
        ("model.layers.1.mlp.experts.0.down_proj.weight", "layers.1.moe.routed_experts.inner_experts.w2_EDF"),
        ("model.layers.1.mlp.experts.7.down_proj.weight", "layers.1.moe.routed_experts.inner_experts.w2_EDF"),
    ),
    "mtp-norms": (
        "deepseek_v3_mtp",
        ("model.layers.3.enorm.weight", "mtp_layers.0.enorm.weight"),
        ("model.layers.3.shared_head.norm.weight", "mtp_layers.0.mtp_norm.weight"),
    ),
    "mtp-main": (
        "deepseek_v3_mtp",
        ("model.layers.2.mlp.gate.e_score_correction_bias", "layers.2.moe.expert_bias_E"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "mtp_layers.0.moe.expert_bias_E"),
    ),
    "alpha-beta": (
        "qwen3_5_moe_text",
        ("model.layers.0.linear_attn.in_proj_a.weight", "layers.0.attn.in_proj_a.weight"),
        ("model.layers.0.linear_attn.in_proj_b.weight", "layers.0.attn.in_proj_b.weight"),
    ),
}


def load_all(path):
    """All tensors of a directory of torch.distributed.checkpoint, as torch loads them."""
    entries = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    targets = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()}
    dcp.load(targets, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    return targets


def without_copies(tensors):
    """DeepSeek's layer of MTP has copies of embedding and head. torchtitan shares those, and its adapter has no keys
    for them."""
    copies = ("model.layers.3.embed_tokens.weight", "model.layers.3.shared_head.head.weight")
    return {name: tensor for name, tensor in tensors.items() if name not in copies}


def as_multimodal(tensors):
    """As torchtitan 0.3.0's adapter for Qwen3.5 wants it. It knows the multimodal model alone, in which the text model
    is called model.language_model; transformers saves the latter by itself here. It takes packed experts, which this
    transformers saves one by one. And it believes packed experts to be [in, out]; they are [out, in], and torchtitan
    reads them so since pull request 4373."""
    found = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." not in name:
            found[name.replace("model.", "model.language_model.", 1)] = tensor
        elif name.endswith("experts.0.gate_proj.weight"):
            layer = name.removesuffix("0.gate_proj.weight")

            def packed(part, layer=layer):
                return torch.stack([tensors[f"{layer}{expert}.{part}.weight"] for expert in range(EXPERTS)])

            to = layer.replace("model.", "model.language_model.", 1)
            gate_up = torch.cat([packed("gate_proj"), packed("up_proj")], 1)
            found[to + "gate_up_proj"] = gate_up.transpose(1, 2)
            found[to + "down_proj"] = packed("down_proj").transpose(1, 2)
    return found


def for_adapter(family, tensors):
    return as_multimodal(tensors) if family == "qwen3_5_moe_text" else without_copies(tensors)


class Models:
    """Per family: the saved model and torchtitan's form of it, made once."""

    def __init__(self, folder, dtype=torch.bfloat16):
        self.folder, self.dtype = folder, dtype
        (folder / "out").mkdir()
        self.program = Program(os.environ["GLU_CKPT"], folder / "out")
        self.made = {}

    def source(self, family):
        path = self.folder / family
        if not path.exists():
            # In bfloat16 a few parameters are float32, as published.
            tiny_models.save(family, path, self.dtype)
        return path

    def torchtitan(self, family):
        if family not in self.made:
            self.made[family] = self.program.convert(self.source(family), "--to", "torchtitan")
        return self.made[family]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("torchtitan"))


def known_to_adapter(family, tensors):
    """The tensors without the biases of zeros that were added."""
    added = {name for name in tensors if name.endswith(".moe.expert_bias_E") and family in WITHOUT_BIAS}
    routers = {name for name in tensors if name.endswith(".moe.router.gate.weight")}
    assert len(added) == (len(routers) if family in WITHOUT_BIAS else 0)
    for name in added:
        assert tensors[name].dtype == torch.float32 and tensors[name].tolist() == [0.0] * EXPERTS
    return {name: tensor for name, tensor in tensors.items() if name not in added}


def wanted(models, family):
    """What the adapter makes of the source."""
    source = models.source(family)
    adapter = torchtitan_adapters.make_adapter(source)
    return adapter.from_hf(for_adapter(family, load_safetensors(source)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tensors_are_those_of_torchtitan(models, family):
    assert_same(known_to_adapter(family, load_all(models.torchtitan(family))), wanted(models, family))


@pytest.mark.parametrize("family", FAMILIES)
def test_torchtitan_makes_the_source_of_them(models, family):
    source = models.source(family)
    made = torchtitan_adapters.make_adapter(source).to_hf(known_to_adapter(family, load_all(models.torchtitan(family))))
    assert_same(made, for_adapter(family, load_safetensors(source)))


@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back(models, family):
    source = models.source(family)
    back = models.program.convert(models.torchtitan(family), "--to", "hf")
    assert_same(load_safetensors(back), load_safetensors(source))
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_digests_agree(models, family):
    source, there = models.source(family), models.torchtitan(family)
    assert models.program.digest(there) == models.program.digest(source)
    models.program.run("verify", source, there)


@pytest.mark.parametrize("control", CONTROLS)
def test_tensors_that_traded_places_are_seen(models, tmp_path, control):
    family, (one, one_key), (other, other_key) = CONTROLS[control]
    source, wrong = models.source(family), with_places_traded(models, family, one, other, tmp_path / "wrong")
    got = known_to_adapter(family, load_all(models.program.convert(wrong, "--to", "torchtitan")))
    want = wanted(models, family)
    with pytest.raises(AssertionError):
        assert_same(got, want)
    assert {name for name in want if not torch.equal(bits(got[name]), bits(want[name]))} == {one_key, other_key}
    assert models.program.digest(wrong) != models.program.digest(source)


def with_places_traded(models, family, one, other, wrong):
    """A copy of the source in which two tensors have traded places."""
    shutil.copytree(models.source(family), wrong)
    tensors = load_safetensors(wrong)
    tensors[one], tensors[other] = tensors[other], tensors[one]
    save_file(tensors, wrong / "model.safetensors", {"format": "pt"})
    return wrong


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Per model in float32: what transformers computes, and what torchtitan said; of wrong ones, by their control."""
    folder = tmp_path_factory.mktemp("computed")
    models, wants, jobs = Models(folder, torch.float32), {}, []
    sources = {family: models.source(family) for family in COMPUTED}
    for control, (family, (one, _), (other, _)) in CONTROLS.items():
        if family in COMPUTED:
            sources[control] = with_places_traded(models, family, one, other, folder / f"wrong-{control}")
    for name, source in sources.items():
        there = models.program.convert(source, "--to", "torchtitan")
        jobs.append({
            "name": name, "config": str(source / "config.json"), "checkpoint": str(there),
            "ids": tiny_models.token_ids().tolist(), "output": str(folder / f"{name}.safetensors"),
        })  # fmt: skip
        wants[name] = tiny_models.logits(transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation="eager"
        ).eval())  # fmt: skip
    (folder / "jobs.json").write_text(json.dumps(jobs))
    judge = [sys.executable, pathlib.Path(__file__).with_name("torchtitan_judge.py"), folder / "jobs.json"]
    done = subprocess.run(judge, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    said = {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}
    return {job["name"]: (said[job["name"]], wants[job["name"]], job["output"]) for job in jobs}


@pytest.mark.parametrize("family", COMPUTED)
def test_torchtitans_own_model_computes_what_transformers_computes(computed, family):
    found, want, output = computed[family]
    assert found == {"name": family, "missing": [], "unexpected": []}
    assert (load_file(output)["logits"] - want).abs().max() <= tiny_models.TOLERANCE


@pytest.mark.parametrize("control", [name for name, (family, *_) in CONTROLS.items() if family in COMPUTED])
def test_its_logits_show_tensors_that_traded_places(computed, control):
    _, want, output = computed[control]
    got, right = load_file(output)["logits"], load_file(computed[CONTROLS[control][0]][2])["logits"]
    assert (got - want).abs().max() <= tiny_models.TOLERANCE and (got - right).abs().max() > 0.01
