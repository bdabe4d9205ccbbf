"""Lets Megatron-Bridge's own mapping make every parameter of a model, and says which differ from those of a checkpoint.

usage: bridge_judge.py JOBS
JOBS is a JSON file with a list of jobs, each:
  name        of the job
  source      a Hugging Face directory
  checkpoint  the torch_dist directory that glu-ckpt made of it, e.g. .../release
  arguments   Megatron-LM's arguments, as glu-ckpt writes them
  published   optionally, fields that published configurations have and transformers' do not, for Megatron-Bridge
  prefix      optionally, what stands before the parameters' names where the model is a part of another
  swap        optionally, a key of the source two halves of which are exchanged before Megatron-Bridge reads it
For each job it prints one line of JSON: name; how many parameters are `equal`, and of the others which Megatron-Bridge
has no mapping for (`unmapped`), cannot make (`failed`, with why), makes in another shape or with other bits (`differ`);
which of the source's tensors it read for none of them (`unread`); where its own configuration and the arguments differ
(`settings`: field to both values, its own first); error, if there was one.
Of an architecture that it does not know: `no bridge`, and which.

The parameters are those of one process, tensors and experts undivided. What stands in for what: modules that a GPU's
Megatron has and a CPU's has not are empty (STAND_INS), and so is a layer that a mapping asks for its kind and shape.
Packages that only gather all bridges are left out, as they import trainers; the bridges and mappings are theirs.
"""

import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import pathlib
import re
import sys
import traceback
import types

STAND_INS = ("transformer_engine", "omegaconf", "transformers.modeling_attn_mask_utils")
# As Megatron's layers name the parts of one parameter in a checkpoint, in their order.
PARTS = {
    "in_proj": (("query", "key", "value", "z", "beta", "alpha"), ("z", "x", "B", "C", "dt")),
    "conv1d": (("query", "key", "value"), ("x", "B", "C")),
}

# What makes one model another with the same tensors.
SETTINGS = (
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size",
    "vocab_size", "share_embeddings_and_output_weights", "layernorm_epsilon", "normalization", "qk_layernorm",
    "add_qkv_bias", "add_bias_linear", "gated_linear_unit", "position_embedding_type", "rotary_base", "rotary_percent",
    "window_size", "window_attn_skip_freq", "softmax_scale", "num_moe_experts", "moe_ffn_hidden_size", "moe_layer_freq",
    "moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_router_topk", "moe_router_score_function",
    "moe_router_pre_softmax", "moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk",
    "moe_router_enable_expert_bias", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    "rotary_scaling_factor", "mscale", "mscale_all_dim", "mtp_num_layers", "linear_attention_freq",
    "attention_output_gate", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk", "mamba_num_heads",
    "mamba_head_dim", "mamba_state_dim", "mamba_num_groups",
)  # fmt: skip

# Of latent attention alone.
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rotary_scaling_factor",
          "mscale", "mscale_all_dim")  # fmt: skip


class Empty(type):
    """Any class of a package that is not there, and any class inside of that."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class EmptyModule(types.ModuleType):
    __path__ = []
    __version__ = "2.99"  # newer than whatever is asked for

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{top}.") for top in STAND_INS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return EmptyModule(spec.name)

    def exec_module(self, module):
        pass


def start():
    """All of Megatron-Bridge's mappings, in its own table."""
    logging.disable(logging.CRITICAL)
    import megatron_on_cpu

    megatron_on_cpu.install()
    # Megatron-Core is asked for while nothing stands in for Transformer Engine, of which it would use more.
    import megatron.core.models.gpt
    import megatron.core.models.hybrid

    sys.meta_path.insert(0, Finder())
    folders = [pathlib.Path(folder, "bridge") for folder in megatron.__path__]
    root = next(folder for folder in folders if folder.is_dir())
    for name, folder in (("megatron.bridge", root), ("megatron.bridge.models", root / "models")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    failed = {}
    for file in sorted((root / "models").rglob("*_bridge.py")):
        name = ".".join(("megatron.bridge", *file.relative_to(root).with_suffix("").parts))
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed[name] = str(error)
    return failed


class Source:
    """A Hugging Face model as Megatron-Bridge wants it; knows which tensors were asked for."""

    def __init__(self, folder, published, swap):
        import transformers

        from glu_program import load_safetensors

        self.model_name_or_path = str(folder)
        self.generation_config = None
        try:
            self.config = transformers.AutoConfig.from_pretrained(folder)
        except ValueError:  # transformers has no class for it.
            self.config = transformers.PreTrainedConfig(**json.loads((folder / "config.json").read_text()))
        for name, value in published.items():
            has_it = hasattr(self.config, name) or not hasattr(self.config, "text_config")
            setattr(self.config if has_it else self.config.text_config, name, value)
        self.state = State(load_safetensors(folder))
        if swap:
            self.state[swap] = self.state[swap].roll(len(self.state[swap]) // 2, 0)


class State(dict):
    read = frozenset()

    def __getitem__(self, key):
        self.read = self.read | {key}
        return super().__getitem__(key)

    @property
    def source(self):
        return self

    def get_all_keys(self):
        return list(self)

    def has_glob(self, pattern):
        return bool(self.glob(pattern))

    def glob(self, pattern):
        import fnmatch

        return {key: self[key] for key in self if fnmatch.fnmatch(key, pattern)}


def parameters(checkpoint):
    """By the model's names: one parameter for each expert, and one for parts that the checkpoint keeps apart."""
    import torch

    tensors = read_torch_dist(checkpoint)
    made = {}
    for key, tensor in tensors.items():
        experts = re.fullmatch(r"(.*\.experts)\.experts\.(linear_fc[12]\.(?:weight|bias))", key)
        part = re.fullmatch(r"(.*\.(in_proj|conv1d)\.(?:weight|bias))\.(\w+)", key)
        if experts:
            made |= {f"{experts[1]}.{experts[2]}{expert}": tensor[expert] for expert in range(len(tensor))}
        elif part:
            names = next(names for names in PARTS[part[2]] if all(f"{part[1]}.{name}" in tensors for name in names))
            made[part[1]] = torch.cat([tensors[f"{part[1]}.{name}"] for name in names])
        else:
            made[key] = tensor
    # What is "transformer_layer" in a checkpoint is "mtp_model_layer" in the model.
    return {name.replace(".transformer_layer.", ".mtp_model_layer."): tensor for name, tensor in made.items()}


def read_torch_dist(checkpoint):
    import torch
    import torch.distributed.checkpoint as dcp

    entries = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if hasattr(entry, "properties") and not name.startswith("glu_ckpt.")
    }
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(checkpoint), no_dist=True)
    return tensors


def layer_of(name, tensor, config):
    """A layer that has this one parameter. With one process for all, every kind of layer holds it whole."""
    import torch

    class ColumnParallelLinear(torch.nn.Module):
        pass

    last = re.sub(r"((?:weight|bias))\d+$", r"\g<1>0", name.rpartition(".")[2])
    layer = ColumnParallelLinear()
    layer.config = config
    layer.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=False))
    if last != "weight":
        layer.weight = layer.get_parameter(last)
    return layer


def bridge_of(source):
    """None where it has none."""
    from megatron.bridge.models.conversion.model_bridge import get_model_bridge

    name = source.config.architectures[0]
    known = {getattr(source, "__name__", source): source for source in get_model_bridge._exact_types}
    return get_model_bridge(known[name], hf_config=source.config) if name in known else None


def settings(provider, text):
    """Where the two disagree about what the model is."""
    import megatron_arguments

    args = megatron_arguments.parse(text)
    config = megatron_arguments.make_config(args, use_cpu_initialization=True)
    ours = {name: getattr(config, name, getattr(args, name, None)) for name in SETTINGS}
    ours["share_embeddings_and_output_weights"] = not args.untie_embeddings_and_output_weights
    theirs = {name: getattr(provider, name, None) for name in SETTINGS}
    said, meant = plain(theirs, hasattr(provider, "q_lora_rank")), plain(ours, config.multi_latent_attention)
    return {name: [said[name], meant[name]] for name in SETTINGS if said[name] != meant[name]}


def plain(said, has_latents):
    """As JSON says it, and one spelling for what Megatron takes for the same."""
    said = {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}
    layers, heads = said["num_layers"], said["num_attention_heads"]
    if not has_latents:
        said |= dict.fromkeys(LATENT)
        said["kv_channels"] = said["kv_channels"] or said["hidden_size"] // heads
    elif said["rotary_scaling_factor"] == 1:
        said |= {"mscale": None, "mscale_all_dim": None}
    if has_latents:
        said["kv_channels"] = None
    if said["moe_router_score_function"] == "sigmoid":
        said["moe_router_pre_softmax"] = None
    if said["moe_router_num_groups"] == 1:
        said |= {"moe_router_num_groups": None, "moe_router_group_topk": None}
    if said["num_moe_experts"]:
        said["moe_ffn_hidden_size"] = said["moe_ffn_hidden_size"] or said["ffn_hidden_size"]
        said["ffn_hidden_size"] = said["ffn_hidden_size"] or said["moe_ffn_hidden_size"]
    if isinstance(step := said["window_attn_skip_freq"], int):
        said["window_attn_skip_freq"] = [int(layer % step != 0) for layer in range(1, layers + 1)]
    for name in ("window_attn_skip_freq", "moe_layer_freq"):
        if said[name] == [1] * layers:
            said[name] = 1
    said["window_attn_skip_freq"] = (said["window_attn_skip_freq"] or 1) if said["window_size"] else None
    return {name: value or None for name, value in said.items()}


def judge(job):
    source = Source(pathlib.Path(job["source"]), job.get("published", {}), job.get("swap"))
    bridge = bridge_of(source)
    if bridge is None:
        return {"no bridge": source.config.architectures[0]}
    bridge.hf_pretrained, bridge.hf_config = source, source.config
    provider = bridge.provider_bridge(source)
    found = {"equal": 0, "unmapped": [], "failed": {}, "differ": [], "settings": settings(provider, job["arguments"])}
    registry = bridge.mapping_registry()
    for name, ours in parameters(job["checkpoint"]).items():
        mapping = registry.megatron_to_hf_lookup(job.get("prefix", "") + name)
        if mapping is None:
            found["unmapped"].append(name)
            continue
        try:
            weights = bridge.maybe_modify_loaded_hf_weight(mapping.hf_param, source.state)
            theirs = mapping.hf_to_megatron(weights, layer_of(name, ours, provider))
        except Exception as error:
            found["failed"][name] = f"{type(error).__name__}: {error}"
            continue
        if is_same(ours, theirs):
            found["equal"] += 1
        else:
            found["differ"].append(name)
    found["unread"] = sorted(source.state.keys() - source.state.read)
    return found


def is_same(ours, theirs):
    import torch

    from glu_program import bits

    return ours.shape == theirs.shape and ours.dtype == theirs.dtype and torch.equal(bits(ours), bits(theirs))


def main(jobs):
    failed = start()
    print(json.dumps({"name": "", "not imported": failed}), flush=True)
    for job in json.loads(jobs.read_text()):
        try:
            found = judge(job)
        except Exception:
            found = {"error": traceback.format_exc()}
        print(json.dumps({"name": job["name"]} | found), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
