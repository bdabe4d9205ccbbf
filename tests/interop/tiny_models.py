"""Tiny models of each family as transformers makes and saves them, with every parameter at random.

No two sizes are equal, so that nothing fits where it does not belong, and no value is what Megatron takes for granted:
an argument that is forgotten shows. As transformers makes a model, norms are 1 and biases 0, which would hide most
faults.
"""

import copy
import dataclasses
import json
import pathlib
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import save_file

from glu_program import load_safetensors

HIDDEN, VOCABULARY, LAYERS = 64, 100, 3
# Megatron's logits and transformers' differ by at most so much.
TOLERANCE = 2e-5
COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None, "tie_word_embeddings": False, "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}  # fmt: skip
QWEN = {
    "head_dim": 32, "intermediate_size": 80, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48,
}  # fmt: skip
DEEPSEEK = {
    "num_key_value_heads": 4, "intermediate_size": 80, "moe_intermediate_size": 48, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20, "q_lora_rank": 28, "kv_lora_rank": 24,
    # The latent norms have this epsilon, whatever is written here; Megatron has one for all norms.
    "rms_norm_eps": 1e-6,
}  # fmt: skip
# The same without latents.
GLM = DEEPSEEK | {"num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-3}
HUNYUAN = {
    "head_dim": 32, "intermediate_size": 80, "moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3,
    "num_shared_experts": 2, "router_scaling_factor": 2.5,
}  # fmt: skip
GATED_DELTA_NET = {
    "num_hidden_layers": 4, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 56, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 20, "linear_value_head_dim": 12, "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
INDEXERS = {"index_n_heads": 3, "index_head_dim": 16, "index_topk": 5, "n_group": 1, "topk_group": 1}
NEMOTRON = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe"],
    "head_dim": 32, "intermediate_size": 80, "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 56,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5, "layer_norm_epsilon": 1e-5,
    "mamba_num_heads": 6, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 20,
    "max_position_embeddings": 128,
}  # fmt: skip
HYBRID_WITHOUT = ("rms_norm_eps", "rope_parameters", "num_hidden_layers")
# As published, in models that are bfloat16 otherwise.
FLOAT32 = ("e_score_correction_bias", "A_log", "linear_attn.norm.weight")


def yarn(**more):
    # Megatron's command line has no argument for the original length of MLA models, and takes it to be 4096.
    return {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 4096} | more


@dataclasses.dataclass(frozen=True)
class Family:
    model_type: str
    config: dict
    # Layers that transformers neither makes nor loads, added to the file.
    mtp: bool = False
    # Its norms of q and k span all heads: Megatron needs a layer spec of its own.
    wide_norms: bool = False
    # What all others have, and it has not.
    without: tuple = ()


FAMILIES = {
    "mixtral": Family(
        "mixtral",
        {"head_dim": 32, "intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 3},
    ),
    # As Mixtral was first published: every layer sees so many tokens, fewer than the tests have.
    "mixtral_window": Family(
        "mixtral",
        {"head_dim": 32, "intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 8},
    ),
    "qwen2_moe": Family(
        "qwen2_moe",
        QWEN | {"shared_expert_intermediate_size": 56, "qkv_bias": True, "norm_topk_prob": False},
    ),
    "qwen3_moe": Family("qwen3_moe", QWEN | {"norm_topk_prob": True}),
    "qwen3_moe_tied": Family("qwen3_moe", QWEN | {"tie_word_embeddings": True, "norm_topk_prob": False}),
    # Its scale of YaRN is given, which no argument says as it is.
    "qwen3_moe_yarn": Family(
        "qwen3_moe",
        QWEN | {"norm_topk_prob": True,
                "rope_parameters": yarn(original_max_position_embeddings=32, attention_factor=1.7)},
    ),
    "qwen3_moe_dense_layer": Family("qwen3_moe", QWEN | {"mlp_only_layers": [1], "norm_topk_prob": True}),
    # As DeepSeek-V2-Lite: queries without a latent, softmax without renormalisation.
    "deepseek_v2": Family(
        "deepseek_v2",
        DEEPSEEK | {"q_lora_rank": None, "norm_topk_prob": False, "topk_method": "greedy",
                    "rope_parameters": yarn(mscale=0.707, mscale_all_dim=0.707, beta_fast=32.0, beta_slow=1.0)},
    ),
    "deepseek_v3": Family(
        "deepseek_v3",
        DEEPSEEK | {"num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0,
                    "rope_parameters": yarn(mscale=1.0, mscale_all_dim=1.0, beta_fast=32.0, beta_slow=1.0)},
    ),
    "deepseek_v3_mtp": Family(
        "deepseek_v3", DEEPSEEK | {"n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 1}, mtp=True
    ),
    # Moonlight: a deepseek_v3 without query latent, groups and YaRN.
    "moonlight": Family(
        "deepseek_v3",
        DEEPSEEK | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0},
    ),
    "sarvam_mla": Family("sarvam_mla", DEEPSEEK | {"rope_parameters": yarn(mscale=1.0, mscale_all_dim=1.0)}),
    "glm4_moe": Family(
        "glm4_moe",
        GLM | {"attention_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 0},
    ),
    # GLM-4.5-Air: no norms of queries and keys.
    "glm4_moe_mtp": Family(
        "glm4_moe",
        GLM | {"attention_bias": True, "use_qk_norm": False, "num_nextn_predict_layers": 1},
        mtp=True,
    ),
    "glm4_moe_lite": Family(
        "glm4_moe_lite",
        DEEPSEEK | {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
    # Its layers of the main stack take turns: those without an indexer see what the one before chose.
    "glm_moe_dsa": Family(
        "glm_moe_dsa", DEEPSEEK | INDEXERS | {"head_dim": 8, "indexer_types": ["full", "shared", "full"]}
    ),
    "deepseek_v32": Family("deepseek_v32", DEEPSEEK | INDEXERS | {"head_dim": 8, "index_n_heads": 4}),
    "dots1": Family(
        "dots1",
        GLM | {"norm_topk_prob": True, "n_group": 1, "topk_group": 1},
    ),
    # No layer is dense, and the class has no intermediate_size.
    "solar_open": Family(
        "solar_open",
        {"head_dim": 32, "moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 3,
         "n_shared_experts": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1},
    ),
    "hy_v3": Family("hy_v3", HUNYUAN),
    "hy_v3_mtp": Family(
        "hy_v3",
        HUNYUAN | {"mlp_layer_types": ["dense", "dense", "sparse"], "num_nextn_predict_layers": 1}, mtp=True
    ),
    # Its layers with a window alone have rotary embedding.
    "exaone_moe": Family(
        "exaone_moe",
        QWEN | {"num_shared_experts": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 1,
                "topk_group": 1, "sliding_window": 8, "first_k_dense_replace": 1,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "gpt_oss": Family(
        "gpt_oss",
        {"head_dim": 32, "intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 8,
         "rope_parameters": yarn(rope_theta=150000.0, factor=32.0, original_max_position_embeddings=1024,
                                 beta_fast=16.0, beta_slow=2.0, truncate=False), "swiglu_limit": 0.5},
    ),
    # All layers with rotary embedding: without, the released models are not what Megatron computes.
    "llama4_text": Family(
        "llama4_text",
        {"head_dim": 32, "intermediate_size": 48, "intermediate_size_mlp": 80, "num_local_experts": 8,
         "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "no_rope_layers": [1] * LAYERS,
         "attn_temperature_tuning": False, "use_qk_norm": True, "attention_chunk_size": 128},
    ),
    "granitemoe": Family(
        "granitemoe",
        {"intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 3, "attention_multiplier": 0.25},
    ),
    "granitemoeshared": Family(
        "granitemoeshared",
        {"intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 3, "attention_multiplier": 0.25,
         "shared_intermediate_size": 56},
    ),
    "olmoe": Family(
        "olmoe", {"intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False},
        wide_norms=True,
    ),
    "minimax_m2": Family(
        "minimax_m2",
        {"head_dim": 32, "intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 16},
        wide_norms=True,
    ),
    "qwen3_next": Family("qwen3_next", GATED_DELTA_NET | {"norm_topk_prob": True}),
    "qwen3_next_mtp": Family("qwen3_next", GATED_DELTA_NET | {"norm_topk_prob": True}, mtp=True),
    "qwen3_5_moe_text": Family("qwen3_5_moe_text", GATED_DELTA_NET),
    # Its correction bias is for the choice after a softmax, which Megatron does not know: only zeros agree.
    "ernie4_5_moe": Family(
        "ernie4_5_moe",
        {"intermediate_size": 80, "moe_intermediate_size": 48, "moe_num_experts": 8, "moe_k": 3,
         "moe_num_shared_experts": 2, "moe_layer_start_index": 1},
    ),
    # Each layer is one mixer, and the norm inside of Megatron's Mamba has this epsilon.
    "nemotron_h": Family("nemotron_h", NEMOTRON, without=HYBRID_WITHOUT),
    "nemotron_h_latent": Family("nemotron_h", NEMOTRON | {"moe_latent_size": 28}, without=HYBRID_WITHOUT),
    # One step of multi-token prediction is two layers.
    "nemotron_h_mtp": Family(
        "nemotron_h", NEMOTRON | {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["full_attention", "moe"]},
        mtp=True, without=HYBRID_WITHOUT,
    ),
    # Dense models. Megatron-Core has the numbers of Llama 3.1's scaling alone.
    "llama": Family(
        "llama",
        {"head_dim": 20, "intermediate_size": 80,
         "rope_parameters": {"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
    ),
    "mistral": Family("mistral", {"head_dim": 20, "intermediate_size": 80, "sliding_window": 8}),
    "qwen2": Family("qwen2", {"intermediate_size": 80}),
    "qwen3": Family("qwen3", {"head_dim": 20, "intermediate_size": 80}),
    "qwen3_tied": Family("qwen3", {"head_dim": 20, "intermediate_size": 80, "tie_word_embeddings": True}),
}  # fmt: skip


def _fields(family):
    fields = copy.deepcopy(COMMON | family.config)
    return {name: value for name, value in fields.items() if name not in family.without}


@torch.no_grad()
def make(name, dtype=torch.float32, seed=0):
    """The model, with random parameters of that dtype; some families keep a few in float32."""
    family = FAMILIES[name]
    # transformers writes into what it is given.
    config = transformers.AutoConfig.for_model(family.model_type, **_fields(family))
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    for tensor_name, tensor in model.state_dict(keep_vars=True).items():
        if tensor_name.endswith(FLOAT32):
            tensor.data = tensor.data.float()
        tensor.copy_(_values(tensor_name, tensor.shape, family.model_type, generator))
    return model


def _values(name, shape, model_type, generator):
    normal, uniform = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    if name.endswith("e_score_correction_bias"):
        return torch.zeros(shape) if model_type == "ernie4_5_moe" else 0.2 * normal
    if name.endswith("A_log"):
        return uniform
    if name.endswith("linear_attn.norm.weight"):
        # Subtracting 1 from these is exact in float32.
        return 0.6 + 0.8 * uniform
    if name.endswith("norm.weight"):
        around = 0.0 if model_type in ("qwen3_next", "qwen3_5_moe_text") else 1.0
        return around + 0.2 * normal
    if len(shape) == 1 or name.endswith("bias") or name.endswith("_bias"):
        return 0.2 * normal
    return 0.08 * normal


def save(name, folder, dtype=torch.float32, max_shard_size="50MB", seed=0):
    """The model in memory, and saved in that folder."""
    model = make(name, dtype, seed)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    if FAMILIES[name].mtp:
        _add_mtp(pathlib.Path(folder), seed)
    return model


def _add_mtp(folder, seed):
    """Appends what DeepSeek and GLM publish after their last layer: one more layer like it, what joins it with the
    embedding, and copies of embedding and head. In a file of its own if there are several."""
    tensors = load_safetensors(folder)
    added = _mtp_tensors(tensors, torch.Generator().manual_seed(seed + 1))
    index_file = folder / "model.safetensors.index.json"
    if not index_file.exists():
        save_file(tensors | added, folder / "model.safetensors", {"format": "pt"})
        return
    save_file(added, folder / "model-mtp.safetensors", {"format": "pt"})
    index = json.loads(index_file.read_text())
    index["weight_map"] |= dict.fromkeys(added, "model-mtp.safetensors")
    index["metadata"]["total_size"] += sum(tensor.nbytes for tensor in added.values())
    index_file.write_text(json.dumps(index, indent=2) + "\n")


def _mtp_names(tensors):
    """What stands before each layer inside, with the layer of the main stack that is like it, and the keys of what
    stands around them."""
    if any(name.startswith("backbone.") for name in tensors):
        like = {"mtp.layers.0.": "backbone.layers.2.", "mtp.layers.1.": "backbone.layers.5."}
        return like, {"enorm": "mtp.layers.0.enorm", "hnorm": "mtp.layers.0.hnorm",
                      "eh_proj": "mtp.layers.0.eh_proj", "shared_head.norm": "mtp.layers.1.final_layernorm"}  # fmt: skip
    stack = "model.layers."
    last = f"{stack}{max(int(name.split('.')[2]) for name in tensors if name.startswith(stack))}."
    if any(".linear_attn." in name for name in tensors):
        return {"mtp.layers.0.": last}, {"enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden",
                                         "eh_proj": "mtp.fc", "shared_head.norm": "mtp.norm"}  # fmt: skip
    layer = f"{stack}{LAYERS}."
    names = {name: layer + name for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")}
    if any(".mlp.router.gate." in name for name in tensors):
        names["shared_head.norm"] = layer + "final_layernorm"
    return {layer: last}, names


def _mtp_tensors(tensors, generator):
    like, names = _mtp_names(tensors)
    # Qwen3-Next's norms are around 0.
    around = 0.0 if names["eh_proj"] == "mtp.fc" else 1.0

    def values(name, shape):
        # As of a norm around 1, moved to where this family has it.
        made = _values(name, shape, "", generator)
        return made - 1.0 + around if name.endswith("norm.weight") else made

    added = {
        layer + name.removeprefix(main): values(name, tensor.shape).to(tensor.dtype)
        for layer, main in like.items()
        for name, tensor in sorted(tensors.items())
        if name.startswith(main)
    }
    dtype = tensors["lm_head.weight"].dtype
    for name, key in names.items():
        shape = (HIDDEN, 2 * HIDDEN) if name == "eh_proj" else (HIDDEN,)
        added[f"{key}.weight"] = values(f"{name}.weight", shape).to(dtype)
    if "shared_head" in names["shared_head.norm"]:
        layer = next(iter(like))
        added[layer + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        added[layer + "shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    return added


def has_unexpected(name):
    """Whether transformers says that it does not know the tensors of MTP; of those under `mtp.` it says nothing."""
    return FAMILIES[name].mtp and FAMILIES[name].model_type not in ("qwen3_next", "nemotron_h")


def judged_arguments(name, text):
    """The arguments, with the layers of MTP that Megatron's own builder has no place for and the judge's has."""
    return text + "--mtp-num-layers 1\n" if FAMILIES[name].mtp and "--mtp-num-layers" not in text else text


def token_ids():
    return torch.randint(0, VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(1))


def logits(model):
    with torch.no_grad():
        return model(input_ids=token_ids()).logits.float()


def _with_mtp_as_last_layers(folder, tensors, like, config):
    """transformers' model of those tensors, in which the layers of MTP are more of the main stack."""
    first = next(iter(like))
    last = config.num_hidden_layers
    if hasattr(config, "layers_block_type"):
        config.layers_block_type = [*config.layers_block_type, *config.mtp_layers_block_type]
    else:
        config.num_hidden_layers += 1
    if getattr(config, "mlp_layer_types", None):
        config.mlp_layer_types = [*config.mlp_layer_types, "sparse"]
    with tempfile.TemporaryDirectory() as scratch:
        if first.startswith("mtp."):
            if not hasattr(config, "layers_block_type"):
                config.layer_types = [*config.layer_types, "full_attention"]
            shutil.copy(folder / "generation_config.json", scratch)
            stack = next(iter(like.values())).split("layers.")[0] + "layers."
            numbered = {layer: f"{stack}{last + i}." for i, layer in enumerate(like)}
            renamed = {}
            for name, tensor in tensors.items():
                inside = next((layer for layer in like if name.startswith(layer)), None)
                if inside or not name.startswith("mtp."):
                    renamed[name.replace(inside, numbered[inside]) if inside else name] = tensor
            save_file(renamed, f"{scratch}/model.safetensors", {"format": "pt"})
            folder = scratch
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    inner, model.model.layers = model.model.layers[last:], model.model.layers[:last]
    if not hasattr(config, "layers_block_type"):
        config.num_hidden_layers = last
    return model, inner


@torch.no_grad()
def mtp_logits(folder):
    """What the layers of MTP say of the token after the next, as DeepSeek-V3's report defines it: transformers leaves
    them out, but their parts are decoder layers like the others and two projections."""
    tensors = load_safetensors(folder)
    like, names = _mtp_names(tensors)
    config = transformers.AutoConfig.from_pretrained(folder)
    epsilon = getattr(config, "rms_norm_eps", None) or config.layer_norm_epsilon
    model, inner = _with_mtp_as_last_layers(pathlib.Path(folder), tensors, like, config)
    offset = 1.0 if names["eh_proj"] == "mtp.fc" else 0.0

    def norm(x, name):
        weight = tensors[f"{names[name]}.weight"] + offset
        return torch.nn.functional.rms_norm(x, (HIDDEN,), weight, epsilon)

    ids = token_ids()
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    following = ids.roll(-1, 1)
    following[:, -1] = 0
    joined = torch.cat([norm(model.get_input_embeddings()(following), "enorm"), norm(hidden, "hnorm")], -1)
    x = joined @ tensors[f"{names['eh_proj']}.weight"].T
    positions = torch.arange(ids.shape[1])[None]
    mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)[None, None]
    rotary = getattr(model.model, "rotary_emb", None)
    embeddings = {"position_embeddings": rotary(x, positions)} if rotary else {}
    for layer in inner:
        x = layer(x, attention_mask=mask, position_ids=positions, **embeddings)
    return norm(x, "shared_head.norm") @ tensors["lm_head.weight"].T
