"""Builds torchtitan's own model, loads a checkpoint of `--to torchtitan` into it, and says what it computes.

usage: torchtitan_judge.py JOBS
JOBS is a JSON file with a list of jobs, each:
  name        of the job
  config      the model's config.json of Hugging Face, whose numbers torchtitan's own builders of layers get
  checkpoint  the directory that torchtitan would load
  ids         token ids, a list of rows
  output      a safetensors file for the logits
For each job it prints one line of JSON: name; missing and unexpected keys; error, if there was one.

A process of its own, since empty modules stand in for good for what torchtitan imports and a CPU has not: its kernels in
triton, spmd_types and tyro. Its experts multiply in bfloat16 by one kernel; here they do it one expert after the other,
in the checkpoint's dtype. Attention is its own for images, by PyTorch's function. All else is torchtitan's as it is.
"""

import importlib.abc
import importlib.machinery
import json
import pathlib
import sys
import traceback
import types

ABSENT = ("spmd_types", "tyro", "torchtitan.distributed.minimal_async_ep")


class _AnyClass(type):
    """A class that has whatever classes it is asked for."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (_Nothing,), {})

    def __getitem__(cls, item):
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class _Nothing:
    """A context that does nothing; as a decorator, with arguments or without, it gives back what it is put on."""

    def __new__(cls, *arguments, **options):
        return arguments[0] if arguments and callable(arguments[0]) else object.__new__(cls)

    def __call__(self, decorated=None, *arguments, **options):
        return decorated

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


class _Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        return getattr(_AnyClass("module", (), {}), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if any(name == absent or name.startswith(absent + ".") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def _expert_by_expert(self, x, tokens_per_expert):
    import torch

    outputs, begin = [], 0
    for expert, tokens in enumerate(tokens_per_expert.tolist()):
        rows = x[begin : begin + tokens]
        hidden = torch.nn.functional.silu(rows @ self.w1_EFD[expert].T) * (rows @ self.w3_EFD[expert].T)
        outputs.append(hidden @ self.w2_EDF[expert].T)
        begin += tokens
    return torch.cat(outputs)


def _rope(kind, config, dim):
    said = config["rope_parameters"]
    options = {"dim": dim, "max_seq_len": config["max_position_embeddings"], "theta": said["rope_theta"]}
    if said["rope_type"] == "llama3":
        names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        options |= {"scaling": "llama", "scaling_factor": said["factor"]} | {name: said[name] for name in names}
    if said["rope_type"] == "yarn":
        options |= {"scaling": "yarn", "rope_factor": said["factor"], "original_seq_len": said["original_max_position_embeddings"]}
        options |= {"beta_fast": said["beta_fast"], "beta_slow": said["beta_slow"]}
    return kind.Config(**options)


def _sizes(config):
    return {"n_layers": config["num_hidden_layers"], "dim": config["hidden_size"],
            "n_heads": config["num_attention_heads"]}  # fmt: skip


def _llama(config):
    from torchtitan.models import llama3
    from torchtitan.models.common import config_utils

    sizes, head_dim = _sizes(config), config["head_dim"]
    layers = llama3._build_llama3_layers(
        **sizes, hidden_dim=config["intermediate_size"], n_kv_heads=config["num_key_value_heads"], fuse_qkv=False,
        attn_backend="flex", rope=_rope(llama3.ComplexRoPE, config, head_dim),
    )  # fmt: skip
    for layer in layers:
        # Its builder of layers has no width of heads, and its attention has.
        layer.attention = config_utils.make_gqa_config(
            dim=sizes["dim"], n_heads=sizes["n_heads"], n_kv_heads=config["num_key_value_heads"], head_dim=head_dim,
            wqkv_param_init={}, wo_param_init={}, inner_attention=layer.attention.inner_attention, rope=layer.attention.rope,
        )  # fmt: skip
    return llama3.Llama3Model, layers


def _qwen3(config):
    from torchtitan.models import qwen3
    from torchtitan.models.common import CosSinRoPE

    common = _sizes(config) | {
        "n_kv_heads": config["num_key_value_heads"], "head_dim": config["head_dim"], "fuse_qkv": False,
        "attn_backend": "flex", "rope": _rope(CosSinRoPE, config, config["head_dim"]),
    }  # fmt: skip
    if config["model_type"] == "qwen3":
        return qwen3.Qwen3Model, qwen3._build_qwen3_layers(**common, hidden_dim=config["intermediate_size"])
    layers = qwen3._build_qwen3_moe_layers(
        **common, moe_hidden_dim=config["moe_intermediate_size"], num_experts=config["num_local_experts"],
        top_k=config["num_experts_per_tok"], moe_comm_backend="standard",
    )  # fmt: skip
    return qwen3.Qwen3Model, layers


def _deepseek(config):
    from torchtitan.models import deepseek_v3

    routing = {"router_score_func": "softmax"}
    if config["model_type"] == "deepseek_v3":
        routing = {
            "router_score_func": "sigmoid", "router_route_norm": True,
            "router_num_expert_groups": config["n_group"], "router_num_limited_groups": config["topk_group"],
        }  # fmt: skip
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    layers = deepseek_v3._build_dsv3_layers(
        **_sizes(config), **{name: config[name] or 0 for name in names},
        n_dense_layers=config["first_k_dense_replace"], mscale=config["rope_parameters"]["mscale"],
        dense_hidden_dim=config["intermediate_size"], moe_hidden_dim=config["moe_intermediate_size"],
        num_experts=config["n_routed_experts"], num_shared_experts=config["n_shared_experts"],
        router_top_k=config["num_experts_per_tok"], **routing,
        router_route_scale=config["routed_scaling_factor"], attn_backend="flex", moe_comm_backend="standard",
        non_blocking_capacity_factor=None,
        rope=_rope(deepseek_v3.ComplexRoPE, config, config["qk_rope_head_dim"]),
    )  # fmt: skip
    return deepseek_v3.DeepSeekV3Model, layers


BUILDERS = {"llama": _llama, "qwen3": _qwen3, "qwen3_moe": _qwen3, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek}


def make_model(config):
    import torch
    from torchtitan.models.common import Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention

    kind, layers = BUILDERS[config["model_type"]](config)
    for layer in layers:
        # The two that language models may choose are a GPU's.
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    dim, words = config["hidden_size"], config["vocab_size"]
    model = kind.Config(
        dim=dim, vocab_size=words, layers=layers, norm=RMSNorm.Config(normalized_shape=dim),
        tok_embeddings=Embedding.Config(num_embeddings=words, embedding_dim=dim),
        lm_head=Linear.Config(in_features=dim, out_features=words),
    ).build()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            # What is not loaded shall show.
            parameter.fill_(float("nan"))
        for module in model.modules():
            if isinstance(module, torch.nn.RMSNorm):
                module.eps = config["rms_norm_eps"]
    return model.eval()


def judge(job):
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    model = make_model(json.loads(pathlib.Path(job["config"]).read_text()))
    reader = dcp.FileSystemReader(job["checkpoint"])
    wanted, held = model.state_dict(), reader.read_metadata().state_dict_metadata
    found = {"missing": sorted(wanted.keys() - held.keys()), "unexpected": sorted(held.keys() - wanted.keys())}
    if not found["missing"]:
        dcp.load(wanted, storage_reader=reader, no_dist=True)
        with torch.no_grad():
            save_file({"logits": model(torch.tensor(job["ids"])).float().contiguous()}, job["output"])
    return found


def main(jobs):
    sys.meta_path.insert(0, _Finder())
    from torchtitan.models.common import moe

    moe.GroupedExperts.forward = _expert_by_expert
    for job in json.loads(jobs.read_text()):
        try:
            found = judge(job)
        except Exception:
            found = {"error": traceback.format_exc()}
        print(json.dumps({"name": job["name"]} | found), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
