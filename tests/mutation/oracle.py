"""Judges an input without the program: is it one model, and what does Megatron's form of it hold?"""
import dataclasses
import pathlib
import re

import checkpoint
import models
import quantized
from checkpoint import Broken, Unclear


@dataclasses.dataclass
class Verdict:
    kind: str  # "sound", "unclear", "model": files that hold no model, "files": no files that anyone should read
    reason: str = ""
    tensors: dict = dataclasses.field(default_factory=dict)
    model: object = None
    # All names begin with a text, or config.json has a stale quantization_config: a trainer's form has neither, and what
    # loads the checkpoint as it is stumbles over both.
    is_wrapped: bool = False


# The copies of the embedding and of the head that DeepSeek-V3's MTP layers have.
MTP_COPY = re.compile(r"^model\.layers\.\d+\.(embed_tokens|shared_head\.head)\.weight$")
WRAPPER_WORD = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_fpw_module|module)\.")


def unwrapped(tensors):
    """The tensors without the words that wrappers put between the components of names, and without the text that they
    put in front of all of them."""
    plain = {}
    for name, tensor in tensors.items():
        word = WRAPPER_WORD.sub("", name)
        if word in plain:
            raise Broken(f"{word} is there twice")
        plain[word] = tensor
    found, has_text = without_text(plain)
    return found, has_text or plain.keys() != tensors.keys()


def without_text(tensors):
    embedding = "model.embed_tokens.weight"
    texts = [name.removesuffix(embedding) for name in tensors if name.endswith(embedding)]
    if len(texts) != 1 or not texts[0] or not all(name.startswith(texts[0]) for name in tensors):
        return tensors, False
    return {name.removeprefix(texts[0]): tensor for name, tensor in tensors.items()}, True


def judge(files):
    try:
        for name, data in files.items():
            if name.endswith(".safetensors"):
                checkpoint.parse(data)
            elif name == checkpoint.INDEX:
                checkpoint.read_json(data)
            elif name == "config.json":
                checkpoint.read_json(data, dict)
    except Broken as error:
        return Verdict("files", str(error))
    tensors = {}
    try:
        tensors, config, metadata = checkpoint.read_files(files)
        tensors, is_wrapped = unwrapped(tensors)
        model = models.Model(config)
        wanted = models.all_tensors(model, tensors)
        if is_stale := quantized.is_stale(tensors, config):
            config = {name: value for name, value in config.items() if name != "quantization_config"}
        plain = quantized.logical(tensors, config, wanted)
        if lost := wanted.keys() - plain.keys() - {name for name in wanted if MTP_COPY.search(name)}:
            raise Broken(f"no {min(lost)}")
        if more := plain.keys() - wanted.keys():
            if not config.get("num_nextn_predict_layers") and all(name.startswith(f"model.layers.{model.layers}.") for name in more):
                raise Unclear("an MTP layer that config.json does not count, which inspect calls a problem")
            raise Unclear("inv_freq") if all("inv_freq" in name for name in more) else Broken(f"{min(more)} has no place")
        for name, tensor in plain.items():
            if list(tensor.shape) != list(wanted[name]):
                raise Broken(f"{name} is {tensor.shape}, config.json says {wanted[name]}")
            if tensor.dtype not in (*models.FLOATS, "F64"):
                raise Broken(f"{name} is {tensor.dtype} without scales")
        if any(key.startswith("glu_ckpt.") for entries in metadata for key in entries):
            raise Unclear("a record")
        if len(plain) == len(tensors):
            models.megatron(model, tensors, 0)
        return Verdict("sound", "", tensors, model, is_wrapped or is_stale)
    except Broken as error:
        return Verdict("model", str(error), tensors)
    except Unclear as error:
        return Verdict("unclear", str(error), tensors)


def is_same(tensors, sound):
    """Whether they are the same but for copies that are lost and axes of one, which no value depends on."""
    def plain(tensor):
        return tensor.dtype, [extent for extent in tensor.shape if extent != 1], tensor.data

    lost = sound.keys() - tensors.keys()
    return all(map(MTP_COPY.search, lost)) and not tensors.keys() - sound.keys() and all(
        plain(tensor) == plain(sound[name]) for name, tensor in tensors.items())  # fmt: skip


def wrong_megatron(out, verdict, block, decoded):
    """Says how OUT's tensors are not those of Megatron's form; "" where they are. `decoded`: of quantized weights."""
    have, _ = checkpoint.parse((out / "model.safetensors").read_bytes())
    have = {name: tensor for name, tensor in have.items() if not name.endswith("_extra_state") and "_extra_state/" not in name}
    want = models.megatron(verdict.model, decoded or verdict.tensors, block)
    if have.keys() != want.keys():
        return f"its tensors differ by {min(have.keys() ^ want.keys())}"
    wrong = [name for name in want if want[name] != have[name]]
    return f"{wrong[0]} is wrong, and {len(wrong) - 1} more" if wrong else ""


def wrong_arguments(text, m):
    """The same of megatron_args.txt, for what this reader knows."""
    words = dict(re.findall(r"^--(\S+)(?: (.*))?$", text, re.MULTILINE))
    rope = m.config.get("rope_parameters") or m.config
    want = {"num-layers": m.layers, "hidden-size": m.hidden, "num-attention-heads": m.heads,
            "vocab-size": m.vocab, "norm-epsilon": m.config["rms_norm_eps"]}  # fmt: skip
    if m.dense:
        want["ffn-hidden-size"] = m.dense_width
    else:
        want |= {"num-experts": m.experts, "moe-ffn-hidden-size": m.expert_width, "moe-router-topk": m.chosen}
    # --rotary-base takes whole numbers; of others `convert` warns.
    if "rope_theta" in rope and float(rope["rope_theta"]).is_integer():
        want["rotary-base"] = rope["rope_theta"]
    if m.latent:
        want |= {"q-lora-rank": m.q_lora_rank, "kv-lora-rank": m.kv_lora_rank, "qk-head-dim": m.qk_nope_head_dim,
                 "qk-pos-emb-head-dim": m.qk_rope_head_dim, "v-head-dim": m.v_head_dim, "moe-router-num-groups": m.groups_of_experts,
                 "moe-router-group-topk": m.chosen_groups, "moe-router-topk-scaling-factor": m.config["routed_scaling_factor"]}  # fmt: skip
    else:
        want |= {"kv-channels": m.head, "num-query-groups": m.groups}
    for name, value in want.items():
        # An argument that is not there has the trainer's default: one group, no scaling.
        if name in words and float(words[name]) != float(value):
            return f"--{name} {words[name]}, config.json says {value}"
        if name not in words and name not in ("num-query-groups", "moe-router-num-groups", "moe-router-group-topk", "moe-router-topk-scaling-factor"):
            return f"no --{name}"
    if ("untie-embeddings-and-output-weights" in words) == m.tied:
        return "the head is tied in one, not in the other"
    return ""


def read_folder(folder):
    folder = pathlib.Path(folder)
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
