"""Whole models whose configuration and tensors say different things, a family each: what programs would leave out, or
compute otherwise, is refused or warned of by its name."""
from case import REFUSED, Case, Run, both, config_changed, tensors_changed


def zeros(rows: int) -> tuple[str, list[int], bytes]:
    return "F32", [rows], bytes(4 * rows)


def biased(*parts: str):
    """Gives each linear layer whose name ends with one of the parts a bias."""

    def edit(tensors: dict) -> None:
        for name, (_, shape, _) in list(tensors.items()):
            stem = name.removesuffix(".weight")
            if stem != name and stem.endswith(parts):
                tensors[stem + ".bias"] = zeros(shape[0])

    return tensors_changed(edit)


def without(*parts: str):
    def edit(tensors: dict) -> None:
        for name in [name for name in tensors if name.endswith(parts)]:
            del tensors[name]

    return tensors_changed(edit)


def refused(model: str, change, says: str, note: str, problem: bool = True) -> Case:
    """Nothing converts it, and `inspect` says why."""
    return Case(f"whole/{model}", "hf", [
        Run("inspect SRC", (0, *REFUSED), says=says) if problem else Run("inspect SRC"),
        Run("convert SRC OUT --to megatron", REFUSED, says=says),
    ], change=change, note=note)


def warned(model: str, change, says: str, note: str) -> Case:
    return Case(f"whole/{model}", "hf", [Run("convert SRC OUT --to megatron", 0, says=rf"warning.*{says}")],
                change=change, note=note)


def converts(model: str, change, note: str) -> Case:
    return Case(f"whole/{model}", "hf", [Run("convert SRC OUT --to megatron", 0, never_says="warning")], change=change,
                note=note)


SLIDING = ["sliding_attention", "full_attention"]
CASES = [
    # Biases that the class of the family does not ask for: programs leave them out, and compute something else.
    refused("qwen3_moe", biased("gate_proj", "up_proj", "down_proj"),
            r"experts\.0\.\w+_proj\.bias' is there, but the experts of a qwen3_moe model have no biases",
            "biases of experts"),
    refused("deepseek_v3", biased("shared_experts.down_proj"),
            r"shared_experts\.down_proj\.bias' is there, but the experts of a deepseek_v3 model have no biases",
            "biases of shared experts"),
    refused("solar_open", both(biased("q_proj", "k_proj", "v_proj"), config_changed(attention_bias=None)),
            r"q_proj\.bias' is there, but programs leave out the biases of a solar_open model's attention where "
            r"config\.json does not say that attention_bias is true", "biases of attention"),
    refused("qwen3_moe", biased("q_proj", "k_proj", "v_proj"), r"q_proj\.bias' is there, but config\.json says that "
            "attention_bias is false", "biases of attention"),
    refused("glm4v_moe", without("q_proj.bias", "k_proj.bias", "v_proj.bias"), r"visual|q_proj\.bias",
            "without biases of attention", problem=False),
    Case("whole/qwen3", "hf", [
        Run("inspect SRC --strict", 3, says=r"lm_head\.bias' and 2 more are weights that a qwen3 model is not "
            "known to have", never_says=r"loads in\s+transformers"),
    ], change=biased("layers.0.mlp.down_proj", "lm_head", "layers.1.mlp.down_proj"), note="a bias of an MLP"),
    # Norms of q and k that the configuration has, and the tensors have not.
    refused("bailing_moe_v2", without("query_layernorm.weight", "key_layernorm.weight"),
            r"query_layernorm\.weight' is missing", "without norms of q and k"),
    refused("bailing_moe_v2", config_changed(use_qk_norm=False), "use_qk_norm is false", "norms of q and k unasked for"),
    converts("bailing_moe_v2", config_changed(use_qk_norm=None), "norms of q and k of which nothing is said"),
    # Words and numbers of layers.
    refused("deepseek_v32", config_changed(mlp_layer_types=["dense", "foo", "sparse"]),
            "mlp_layer_types says 'foo' of layer 1", "a word of layers that nobody knows"),
    refused("nemotron_h", config_changed(layer_types=["full_attention"] * 5),
            "layers_block_type and layer_types are not the same layers", "two lists of mixers"),
    converts("nemotron_h", config_changed(layer_types=["mamba", "moe", "mamba", "attention", "mlp"]),
             "two lists of the same mixers"),
    warned("qwen3_moe", config_changed(layer_types=SLIDING), "layer_types says 'sliding_attention' of layer 0, for which",
           "a window without its width"),
    Case("whole/deepseek_v3", "hf", [
        Run("convert SRC OUT --to megatron", REFUSED, says=r"n_group is 2, of which topk_group chooses 4 \(the default"),
    ], change=config_changed(topk_group=None), note="more groups to choose from than there are"),
    *(refused(model, config_changed(rope_parameters={"rope_type": "default", field: None}),
              rf"rope_parameters\.{field} is null", f"{field} null")
      for model, field in (("qwen3", "rope_theta"), ("minimax_m2", "partial_rotary_factor"))),
    warned("glm_moe_dsa", config_changed(num_key_value_heads=2), "num_key_value_heads is 2, but num_attention_heads makes",
           "fewer heads of keys than latent attention has"),
    # torchtitan's families are named to who has another.
    Case("whole/olmoe", "hf", [
        Run("convert SRC OUT --to torchtitan", 4, says="no models of type 'olmoe'; it has those of deepseek_v2, .*qwen3_moe"),
    ], note="not of torchtitan"),
    Case("whole/qwen2", "hf", [
        Run("convert SRC OUT --to megatron"),
        Run("convert OUT OUT2 --to megatron --stack-layers", 4,
            says="common.pt, its saved arguments and its `_extra_state` entries go with keys of each layer"),
    ], note="stacked from keys of each layer"),
]
