"""Reads arguments as Megatron-LM's own command line does, and makes of them what its GPT model is built from.

megatron-core comes without Megatron-LM's parser, so it is made again in the same way: one flag for each field of
TransformerConfig, by the rules of Megatron-LM's training/argument_utils.py, and those of its training/arguments.py
that say what a model is. A flag that Megatron-LM does not know is an error here too. Those of YaRN for models without
latent attention are newer than 0.16.1, whose model knows them all the same.
"""

import argparse
import dataclasses
import re
import types
import typing

import torch

# Fields for which Megatron-LM makes no flag, or one with another form: those are below.
WITHOUT_FLAG = {
    "num_moe_experts", "gated_linear_unit", "activation_func", "bias_activation_fusion", "softmax_scale",
    "window_size", "window_attn_skip_freq", "no_rope_freq", "moe_layer_freq", "linear_attention_freq",
    "moe_router_load_balancing_type", "moe_aux_loss_coeff", "params_dtype", "init_method", "output_layer_init_method",
    "embedding_init_method", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "fp8_param",
    "hetereogenous_dist_checkpoint", "heterogeneous_block_specs", "persist_layer_norm", "bias_dropout_fusion",
    "masked_softmax_fusion", "apply_rope_fusion", "gradient_accumulation_fusion", "attention_softmax_in_fp32",
}  # fmt: skip


def pattern(word):
    """One number, or one per layer: `[0]*1+[1]*2`."""
    if "[" not in word:
        return int(word)
    if re.search(r"[^,\d\[\]()+*]", word):
        raise ValueError(f"no pattern of layers: {word}")
    return eval(word)


def pair(word):
    return tuple(int(number) for number in word.strip("()").split(","))


def _plain_type(annotation):
    """The type of one value, and its choices; None where Megatron-LM makes no flag of it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType) and len(inner) == 2 and inner[1] is type(None):
        return _plain_type(inner[0])
    if origin is typing.Literal:
        return type(inner[0]), inner
    return (annotation, None) if annotation in (int, float, str, bool) else None


def _add_config_flags(parser, config_class):
    for field in dataclasses.fields(config_class):
        plain = None if field.name in WITHOUT_FLAG or not field.init else _plain_type(field.type)
        if plain is None:
            continue
        kind, choices = plain
        meta = dict(field.metadata.get("argparse_meta", {}))
        names = meta.pop("arg_names", None) or ["--" + field.name.replace("_", "-")]
        options = {"dest": field.name, "default": meta.get("default", field.default)}
        if kind is bool:
            options["action"] = "store_false" if field.default else "store_true"
            if field.default and "arg_names" not in field.metadata.get("argparse_meta", {}):
                names = [prefix + names[0].removeprefix("--") for prefix in ("--no-", "--disable-")]
        else:
            options |= {"type": kind, "choices": choices}
        parser.add_argument(*names, **options)


# Those of Megatron-LM's own that say what a model is; by hand there, too.
OWN_FLAGS = {
    "--num-experts": {"type": int},
    "--group-query-attention": {"action": "store_true"},
    "--window-size": {"type": pair},
    "--window-attn-skip-freq": {"type": pattern},
    "--no-rope-freq": {"type": pattern},
    "--moe-layer-freq": {"type": pattern, "default": 1},
    "--linear-attention-freq": {"type": pattern},
    "--moe-router-load-balancing-type": {"default": "aux_loss"},
    "--moe-aux-loss-coeff": {"type": float, "default": 0.0},
    "--swiglu": {"action": "store_true"},
    "--quick-geglu": {"action": "store_true"},
    "--squared-relu": {"action": "store_true"},
    "--hybrid-layer-pattern": {},
    "--untie-embeddings-and-output-weights": {"action": "store_true"},
    "--position-embedding-type": {"choices": ["rope", "yarn", "none"], "default": "learned_absolute"},
    "--max-position-embeddings": {"type": int, "required": True},
    "--seq-length": {"type": int, "required": True},
    "--rotary-base": {"type": int, "default": 10000},
    "--rotary-percent": {"type": float, "default": 1.0},
    "--use-rope-scaling": {"action": "store_true"},
    # Megatron-LM reads it and does not hand it to the model.
    "--rope-scaling-factor": {"type": float, "default": 8.0},
    "--rope-type": {"choices": ["rope", "yarn"]},
    "--rotary-scaling-factor": {"type": float, "default": 1.0},
    "--mscale": {"type": float, "default": 1.0},
    "--mscale-all-dim": {"type": float, "default": 0.0},
    "--yarn-original-max-position-embeddings": {"type": int, "default": 4096},
    "--yarn-beta-fast": {"type": float, "default": 32.0},
    "--yarn-beta-slow": {"type": float, "default": 1.0},
    "--yarn-correction-range-round-to-int": {"action": "store_true", "default": True},
    "--no-yarn-correction-range-round-to-int": {
        "action": "store_false",
        "dest": "yarn_correction_range_round_to_int",
    },
    "--q-lora-rank": {"type": int},
    "--kv-lora-rank": {"type": int, "default": 32},
    "--qk-head-dim": {"type": int, "default": 128},
    "--qk-pos-emb-head-dim": {"type": int, "default": 64},
    "--v-head-dim": {"type": int, "default": 128},
    "--vocab-size": {"type": int},
    "--padded-vocab-size": {"type": int},
    "--make-vocab-size-divisible-by": {"type": int, "default": 128},
    "--no-rope-fusion": {"action": "store_true"},
    "--no-masked-softmax-fusion": {"action": "store_true"},
    "--no-bias-gelu-fusion": {"action": "store_true"},
    "--no-bias-swiglu-fusion": {"action": "store_true"},
    "--no-bias-dropout-fusion": {"action": "store_true"},
}


def parse(text):
    """The words of an argument file, as a shell splits `$(cat megatron_args.txt)`: at white space, and no quotes."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    _add_config_flags(parser, TransformerConfig)
    for name, options in OWN_FLAGS.items():
        parser.add_argument(name, **options)
    args, unknown = parser.parse_known_args(text.split())
    if unknown:
        raise ValueError(f"Megatron-LM knows no such arguments: {' '.join(unknown)}")
    _check(args)
    return args


def _check(args):
    """What Megatron-LM refuses: its validate_args, and with Transformer Engine its modules."""
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        assert getattr(args, name), f"{name} is required"
    assert args.max_position_embeddings >= args.seq_length
    assert not (args.multi_latent_attention and args.group_query_attention), "MLA excludes --group-query-attention"
    assert not (args.swiglu and args.quick_geglu)
    assert args.rope_type in (None, "rope") or args.multi_latent_attention
    fused_rope = args.position_embedding_type == "rope" and not args.no_rope_fusion
    assert not (fused_rope and args.multi_latent_attention and args.rope_type == "rope"), "MLA fuses rope of YaRN only"
    fused_dropout = args.add_bias_linear and not args.no_bias_dropout_fusion
    assert not (fused_dropout and args.moe_grouped_gemm), "grouped experts with biases want --no-bias-dropout-fusion"
    assert args.mtp_num_layers is None or args.position_embedding_type in ("rope", "none")
    if args.padded_vocab_size is None:
        assert args.vocab_size, "neither --vocab-size nor --padded-vocab-size"
        divisor = args.make_vocab_size_divisible_by
        args.padded_vocab_size = -(-args.vocab_size // divisor) * divisor


def make_config(args, **overrides):
    """As core_transformer_config_from_args; `overrides` are what a CPU needs."""
    from megatron.core.activations import squared_relu
    from megatron.core.fusions.fused_bias_geglu import quick_gelu
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    config_class = MLATransformerConfig if args.multi_latent_attention else TransformerConfig
    fields = {
        field.name: getattr(args, field.name) for field in dataclasses.fields(config_class) if hasattr(args, field.name)
    }
    fields["num_moe_experts"] = args.num_experts
    fields["num_query_groups"] = args.num_query_groups if args.group_query_attention else None
    if args.swiglu or args.quick_geglu:
        fields["gated_linear_unit"] = True
        fields["activation_func"] = torch.nn.functional.silu if args.swiglu else quick_gelu
    if args.squared_relu:
        fields["activation_func"] = squared_relu
    if args.rope_type is None:
        fields.pop("rope_type", None)
    config = config_class(**fields | overrides)
    if args.position_embedding_type == "yarn" and not args.multi_latent_attention:
        # Attributes that no field of the class declares; the newer command line sets them like this.
        config.yarn_rotary_scaling_factor = args.rotary_scaling_factor
        config.yarn_mscale, config.yarn_mscale_all_dim = args.mscale, args.mscale_all_dim
        config.yarn_original_max_position_embeddings = args.yarn_original_max_position_embeddings
        config.yarn_beta_fast, config.yarn_beta_slow = args.yarn_beta_fast, args.yarn_beta_slow
        config.yarn_correction_range_round_to_int = args.yarn_correction_range_round_to_int
    return config
