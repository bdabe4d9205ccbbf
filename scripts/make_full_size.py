#!/usr/bin/env python3
"""Writes checkpoints with the keys, shapes, shards and config.json of published models; their data is a hole, but for
the shapes that INT4 stores.

Usage: make_full_size.py OUT [MODEL...] [--shard-bytes 5000000000]

Without a MODEL all of them are written, each to OUT/MODEL. For measuring what a plan costs at real size:

    /usr/bin/time -v glu-ckpt plan OUT/deepseek-v3 OUT/planned --to megatron --json

Needs a filesystem with sparse files; each model takes a few MB of it.
"""

import argparse
import json
import os
import struct

BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4}
QWEN3 = {
    "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536, "intermediate_size": 12288, "vocab_size": 151936, "mlp_only_layers": [],
    "decoder_sparse_step": 1, "norm_topk_prob": True, "attention_bias": False, "rope_theta": 1000000.0,
    "rope_scaling": None, "max_position_embeddings": 40960,
}
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "moe_intermediate_size": 2048, "intermediate_size": 18432,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "vocab_size": 129280,
    "attention_bias": False, "rope_theta": 10000.0, "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
}
KIMI = DEEPSEEK | {
    "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
    "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0, "vocab_size": 163840, "rope_theta": 50000.0, "max_position_embeddings": 131072,
    "rope_scaling": DEEPSEEK["rope_scaling"] | {"factor": 32, "beta_fast": 1.0, "beta_slow": 1.0},
}
INDEXER = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
DEEPSEEK_V32 = DEEPSEEK | INDEXER | {"model_type": "deepseek_v32"}
# Every fourth layer has an indexer of its own, beside the first.
GLM_5 = {
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64,
    "num_key_value_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "qk_head_dim": 256, "v_head_dim": 256, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "moe_intermediate_size": 2048, "intermediate_size": 12288,
    "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "vocab_size": 154880, "attention_bias": False,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "max_position_embeddings": 202752,
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_topk_freq": 4, "index_skip_topk_offset": 2,
}
LLAMA = {
    "model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 53248, "vocab_size": 128256,
    "attention_bias": False, "mlp_bias": False, "rope_theta": 500000.0, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}
NEMOTRON_3_SUPER = {
    "model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2,
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    "num_hidden_layers": 88, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
    "ssm_state_size": 128, "conv_kernel": 4, "n_routed_experts": 512, "n_shared_experts": 1, "num_experts_per_tok": 22,
    "moe_latent_size": 1024, "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376,
    "intermediate_size": 2688, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 5.0, "norm_topk_prob": True,
    "mlp_hidden_act": "relu2", "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
    "layer_norm_epsilon": 1e-05, "vocab_size": 131072, "max_position_embeddings": 262144,
}
GLM = {
    "model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 160, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
    "moe_intermediate_size": 1536, "intermediate_size": 12288, "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1, "vocab_size": 151552, "attention_bias": True, "use_qk_norm": True,
    "partial_rotary_factor": 0.5, "rope_theta": 1000000, "rope_scaling": None, "max_position_embeddings": 202752,
}
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4,
    "intermediate_size": 2880, "vocab_size": 201088, "attention_bias": True, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "swiglu_limit": 7.0, "rope_theta": 150000,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                     "original_max_position_embeddings": 4096},
}
QWEN3_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "intermediate_size": 5120, "vocab_size": 151936, "mlp_only_layers": [],
    "decoder_sparse_step": 1, "norm_topk_prob": True, "partial_rotary_factor": 0.25, "rope_theta": 10000000,
    "rope_scaling": None, "max_position_embeddings": 262144,
}


def mlp(prefix, width, hidden):
    for part in ("gate_proj", "up_proj"):
        yield f"{prefix}.{part}.weight", [width, hidden]
    yield f"{prefix}.down_proj.weight", [hidden, width]


def grouped_attention(config, prefix, gated=False):
    hidden, head = config["hidden_size"], config["head_dim"]
    rows = {"q": config["num_attention_heads"] * head * (2 if gated else 1)}
    rows["k"] = rows["v"] = config["num_key_value_heads"] * head
    for part, count in rows.items():
        yield f"{prefix}.{part}_proj.weight", [count, hidden]
        if config.get("attention_bias"):
            yield f"{prefix}.{part}_proj.bias", [count]
    yield f"{prefix}.o_proj.weight", [hidden, config["num_attention_heads"] * head]
    if config["model_type"] == "gpt_oss":
        yield f"{prefix}.o_proj.bias", [hidden]
        yield f"{prefix}.sinks", [config["num_attention_heads"]]
    elif config["model_type"] != "llama":
        yield f"{prefix}.q_norm.weight", [head]
        yield f"{prefix}.k_norm.weight", [head]


def latent_attention(config, prefix):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    yield f"{prefix}.q_a_proj.weight", [q_rank, hidden]
    yield f"{prefix}.q_a_layernorm.weight", [q_rank]
    yield f"{prefix}.q_b_proj.weight", [heads * (nope + rope), q_rank]
    yield f"{prefix}.kv_a_proj_with_mqa.weight", [kv_rank + rope, hidden]
    yield f"{prefix}.kv_a_layernorm.weight", [kv_rank]
    yield f"{prefix}.kv_b_proj.weight", [heads * (nope + value), kv_rank]
    yield f"{prefix}.o_proj.weight", [hidden, heads * value]


def indexer(config, prefix):
    heads, head, hidden = config["index_n_heads"], config["index_head_dim"], config["hidden_size"]
    yield f"{prefix}.wq_b.weight", [heads * head, config["q_lora_rank"]]
    yield f"{prefix}.wk.weight", [head, hidden]
    yield f"{prefix}.k_norm.weight", [head], "F32"
    yield f"{prefix}.k_norm.bias", [head], "F32"
    yield f"{prefix}.weights_proj.weight", [heads, hidden]


def has_indexer(config, number):
    """Layers share that of the last layer that has one."""
    frequency, offset = config.get("index_topk_freq", 1), config.get("index_skip_topk_offset", 2)
    return "index_topk" in config and (number is None or max(number - offset + 1, 0) % frequency == 0)


def delta_attention(config, prefix):
    hidden, value_heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = value_heads * config["linear_value_head_dim"]
    yield f"{prefix}.in_proj_qkvz.weight", [2 * keys + 2 * values, hidden]
    yield f"{prefix}.in_proj_ba.weight", [2 * value_heads, hidden]
    yield f"{prefix}.conv1d.weight", [2 * keys + values, 1, config["linear_conv_kernel_dim"]]
    yield f"{prefix}.A_log", [value_heads]
    yield f"{prefix}.dt_bias", [value_heads]
    yield f"{prefix}.norm.weight", [config["linear_value_head_dim"]]
    yield f"{prefix}.out_proj.weight", [hidden, values]


def packed_experts(config, prefix):
    experts, width, hidden = config["num_local_experts"], config["intermediate_size"], config["hidden_size"]
    yield f"{prefix}.router.weight", [experts, hidden]
    yield f"{prefix}.router.bias", [experts]
    yield f"{prefix}.experts.gate_up_proj", [experts, hidden, 2 * width]
    yield f"{prefix}.experts.gate_up_proj_bias", [experts, 2 * width]
    yield f"{prefix}.experts.down_proj", [experts, width, hidden]
    yield f"{prefix}.experts.down_proj_bias", [experts, hidden]


def experts(config, prefix):
    count, hidden = config.get("num_experts") or config["n_routed_experts"], config["hidden_size"]
    yield f"{prefix}.gate.weight", [count, hidden]
    if "n_routed_experts" in config:
        yield f"{prefix}.gate.e_score_correction_bias", [count], "F32"
    for expert in range(count):
        yield from mlp(f"{prefix}.experts.{expert}", config["moe_intermediate_size"], hidden)
    if "n_shared_experts" in config:
        yield from mlp(f"{prefix}.shared_experts", config["n_shared_experts"] * config["moe_intermediate_size"], hidden)
    if "shared_expert_intermediate_size" in config:
        yield from mlp(f"{prefix}.shared_expert", config["shared_expert_intermediate_size"], hidden)
        yield f"{prefix}.shared_expert_gate.weight", [1, hidden]


def layer(config, prefix, number):
    """One layer; number None is the one inside of multi-token prediction."""
    hidden, kind = config["hidden_size"], config["model_type"]
    yield f"{prefix}.input_layernorm.weight", [hidden]
    interval = config.get("full_attention_interval")
    if "kv_lora_rank" in config:
        yield from latent_attention(config, f"{prefix}.self_attn")
        if has_indexer(config, number):
            yield from indexer(config, f"{prefix}.self_attn.indexer")
    elif interval and number is not None and (number + 1) % interval:
        yield from delta_attention(config, f"{prefix}.linear_attn")
    else:
        yield from grouped_attention(config, f"{prefix}.self_attn", gated=kind == "qwen3_next")
    yield f"{prefix}.post_attention_layernorm.weight", [hidden]
    if kind == "llama" or number is not None and number < config.get("first_k_dense_replace", 0):
        yield from mlp(f"{prefix}.mlp", config["intermediate_size"], hidden)
    elif kind == "gpt_oss":
        yield from packed_experts(config, f"{prefix}.mlp")
    else:
        yield from experts(config, f"{prefix}.mlp")


def numbered_mtp(config):
    """As DeepSeek and GLM have it: numbered on from the last layer, with the embedding and the head once more."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    prefix = f"model.layers.{config['num_hidden_layers']}"
    yield f"{prefix}.embed_tokens.weight", [vocabulary, hidden]
    yield f"{prefix}.enorm.weight", [hidden]
    yield f"{prefix}.hnorm.weight", [hidden]
    yield f"{prefix}.eh_proj.weight", [hidden, 2 * hidden]
    yield from layer(config, prefix, None)
    yield f"{prefix}.shared_head.norm.weight", [hidden]
    yield f"{prefix}.shared_head.head.weight", [vocabulary, hidden]


def qwen_mtp(config):
    hidden = config["hidden_size"]
    yield "mtp.fc.weight", [hidden, 2 * hidden]
    yield from layer(config, "mtp.layers.0", None)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield f"mtp.{name}.weight", [hidden]


def mamba(config, prefix):
    hidden, heads = config["hidden_size"], config["mamba_num_heads"]
    inner, states = heads * config["mamba_head_dim"], config["n_groups"] * config["ssm_state_size"]
    yield f"{prefix}.in_proj.weight", [2 * inner + 2 * states + heads, hidden]
    yield f"{prefix}.conv1d.weight", [inner + 2 * states, 1, config["conv_kernel"]]
    yield f"{prefix}.conv1d.bias", [inner + 2 * states]
    for name in ("A_log", "D", "dt_bias"):
        yield f"{prefix}.{name}", [heads]
    yield f"{prefix}.norm.weight", [inner]
    yield f"{prefix}.out_proj.weight", [hidden, inner]


def ungated(prefix, width, hidden):
    yield f"{prefix}.up_proj.weight", [width, hidden]
    yield f"{prefix}.down_proj.weight", [hidden, width]


def latent_experts(config, prefix):
    count, hidden, latent = config["n_routed_experts"], config["hidden_size"], config["moe_latent_size"]
    yield f"{prefix}.gate.weight", [count, hidden]
    yield f"{prefix}.gate.e_score_correction_bias", [count], "F32"
    yield f"{prefix}.fc1_latent_proj.weight", [latent, hidden]
    yield f"{prefix}.fc2_latent_proj.weight", [hidden, latent]
    for expert in range(count):
        yield from ungated(f"{prefix}.experts.{expert}", config["moe_intermediate_size"], latent)
    yield from ungated(f"{prefix}.shared_experts", config["moe_shared_expert_intermediate_size"], hidden)


def mixer(config, prefix, letter):
    hidden, head = config["hidden_size"], config["head_dim"]
    yield f"{prefix}.norm.weight", [hidden]
    prefix += ".mixer"
    if letter == "*":
        for name, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"), ("v", "num_key_value_heads")):
            yield f"{prefix}.{name}_proj.weight", [config[heads] * head, hidden]
        yield f"{prefix}.o_proj.weight", [hidden, config["num_attention_heads"] * head]
    else:
        yield from (mamba if letter == "M" else latent_experts)(config, prefix)


def hybrid(config):
    """As Nemotron 3 is published, with one step of MTP."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "backbone.embeddings.weight", [vocabulary, hidden]
    for number, letter in enumerate(config["hybrid_override_pattern"]):
        yield from mixer(config, f"backbone.layers.{number}", letter)
    letters = config["mtp_hybrid_override_pattern"]
    for name, extents in (("enorm", [hidden]), ("hnorm", [hidden]), ("eh_proj", [hidden, 2 * hidden])):
        yield f"mtp.layers.0.{name}.weight", extents
    for number, letter in enumerate(letters):
        yield from mixer(config, f"mtp.layers.{number}", letter)
    yield f"mtp.layers.{len(letters) - 1}.final_layernorm.weight", [hidden]
    yield "backbone.norm_f.weight", [hidden]
    yield "lm_head.weight", [vocabulary, hidden]


def model(config):
    if config["model_type"] == "nemotron_h":
        yield from hybrid(config)
        return
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", [vocabulary, hidden]
    for number in range(config["num_hidden_layers"]):
        yield from layer(config, f"model.layers.{number}", number)
    if config.get("num_nextn_predict_layers"):
        yield from numbered_mtp(config)
    if config["model_type"] == "qwen3_next":
        yield from qwen_mtp(config)
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [vocabulary, hidden]


def quantized(tensors):
    """As DeepSeek keeps its own: the linear layers in FP8, with a scale for each block of 128 x 128."""
    for name, shape, *dtype in tensors:
        # eh_proj is none of them, nor are the copies of the embedding and the head, and the indexer's weights.
        part = name.removesuffix(".weight").rpartition(".")[2]
        is_proj = part.endswith("_proj") and part not in ("eh_proj", "weights_proj")
        if is_proj or part in ("kv_a_proj_with_mqa", "wq_b", "wk"):
            yield name, shape, "F8_E4M3"
            yield name + "_scale_inv", [-(-extent // 128) for extent in shape], "F32"
        else:
            yield name, shape, *dtype


FP8 = {
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
}


def wrapped(tensors):
    """As Kimi-K2.5 is published: inside a model that sees, and its experts in INT4, with a scale for 32 columns."""
    for name, shape, *dtype in tensors:
        name = f"language_model.{name}"
        if ".mlp.experts." in name:
            module, (rows, cols) = name.removesuffix(".weight"), shape
            yield f"{module}.weight_packed", [rows, cols // 8], "I32"
            yield f"{module}.weight_scale", [rows, cols // 32]
            yield f"{module}.weight_shape", [2], "I32", struct.pack("<2i", rows, cols)
        else:
            yield name, shape, *dtype
    for block in range(27):
        yield f"vision_tower.encoder.blocks.{block}.wqkv.weight", [3456, 1152]
    yield "mm_projector.pre_norm.weight", [1152]


KIMI_K25 = {
    "model_type": "kimi_k25",
    "text_config": KIMI | {
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}},
        },
    },
}
MODELS = {
    "deepseek-v3-fp8": DEEPSEEK | FP8, "qwen3-235b-a22b": QWEN3, "deepseek-v3": DEEPSEEK, "kimi-k2": KIMI,
    "glm-4.6": GLM, "gpt-oss-120b": GPT_OSS, "qwen3-next-80b": QWEN3_NEXT, "deepseek-v3.2-fp8": DEEPSEEK_V32 | FP8,
    "glm-5.2": GLM_5, "kimi-k2.5-int4": KIMI_K25, "llama-3.1-405b": LLAMA,
    "nemotron-3-super": NEMOTRON_3_SUPER,
}


def tensor_bytes(shape, dtype):
    count = BYTES[dtype]
    for extent in shape:
        count *= extent
    return count


def write_shard(path, tensors):
    header, at, stored_bytes = {"__metadata__": {"format": "pt"}}, 0, []
    for name, shape, dtype, *data in tensors:
        if data:
            stored_bytes.append((at, *data))
        end = at + tensor_bytes(shape, dtype)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
        for offset, data in stored_bytes:
            file.seek(8 + len(text) + offset)
            file.write(data)


def stored(config):
    if "text_config" in config:
        return wrapped(model(config["text_config"]))
    return quantized(model(config)) if "quantization_config" in config else model(config)


def write_model(out, config, shard_bytes):
    os.makedirs(out)
    shards, size, total = [[]], 0, 0
    for name, shape, *rest in stored(config):
        dtype = rest[0] if rest else "BF16"
        bytes_ = tensor_bytes(shape, dtype)
        if shards[-1] and size + bytes_ > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append((name, shape, dtype, *rest[1:]))
        size += bytes_
        total += bytes_
    weight_map = {}
    for number, tensors in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        write_shard(os.path.join(out, file), tensors)
        weight_map.update((name, file) for name, *_ in tensors)
    with open(os.path.join(out, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file)
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        extra = {"tie_word_embeddings": False, "rms_norm_eps": 1e-06, "hidden_act": "silu", "torch_dtype": "bfloat16"}
        if config["model_type"] == "nemotron_h":
            # It has layer_norm_epsilon and mlp_hidden_act in their place.
            del extra["rms_norm_eps"], extra["hidden_act"]
        text = {"text_config": config["text_config"] | extra} if "text_config" in config else {}
        json.dump(config | extra | text, file, indent=2)
    print(f"{out}: {len(weight_map)} tensors in {len(shards)} files, {total / 1e9:.1f} GB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--shard-bytes", type=int, default=5_000_000_000)
    args = parser.parse_args()
    for name in args.models or MODELS:
        if name not in MODELS:
            parser.error(f"{name} is none of {', '.join(MODELS)}")
        write_model(os.path.join(args.out, name), MODELS[name], args.shard_bytes)


if __name__ == "__main__":
    main()
