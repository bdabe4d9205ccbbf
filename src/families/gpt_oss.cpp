/// gpt-oss.

#include "families/shared_args.hpp"
#include "families/shared_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kGptOss = std::to_array<DenseRow>({
    layer_row("mlp.router.{K}", DenseRole::Router, kExperts),
    layer_row("self_attn.sinks", DenseRole::Sinks, kGrouped),
});

constexpr auto kGptOssExperts = std::to_array<Naming>({
    {.name = "hf:gpt_oss",
     .stacks = kHfStacks,
     .indexed = kPackedIndexed,
     .grouped = kProjGrouped,
     .axes = Axes::InOut,
     .fused_glu = Glu::Kind::Interleaved,
     .fused_block_rows = 1,
     .native_grouped_fused = true,
     .mtp_follows_decoder = true,
     .router = "mlp.router.weight"},
});

constexpr auto kGptOssArgs = std::to_array<ArgRow>({
    {"hidden_act", "quick_geglu", write_quick_geglu, always, "True", "\"silu\""},
    {"swiglu_limit", "activation_func_clamp_value", nullptr, as_float},
    {"attention_bias", "add_bias_linear", nullptr, always, "True", "true"},
    // add_bias_linear says it of all layers.
    {"", "add_qkv_bias", nullptr, constant},
    {"", "glu_linear_offset", nullptr, only, "1"},
    {"", "softmax_type", write_value, always, "learnable"},
    {"sliding_window", "window_size", write_window, window_width},
    {"layer_types", "window_attn_skip_freq", nullptr, window_kinds},
    {"", "no_rope_freq", nullptr, all_with_rope},
    {"rope_scaling", "rotary_scaling_factor", nullptr, rope_scaling, "", "null"},
});

constexpr auto kGptOssFamilies = std::to_array<Family>({
    {.model_type = "gpt_oss",
     .model_class = "GptOssForCausalLM",
     .naming = hf_naming(kHfGrouped, kGptOss),
     .args = {kModelArgs, kGptOssArgs, kGroupedArgs, kOneWidthArgs, kExpertsEverywhereArgs, kTopkArgs, kSoftmaxArgs,
              kRenormalisedArgs},
     .expert_naming = "hf:gpt_oss",
     .renormalised = Renormalised::Always,
     .quick_geglu = true,
     .window = Window::EveryOther,
     .intermediate_is_experts = true,
     .packed_experts = true,
     .mxfp4_blocks = true,
     .biases_everywhere = true,
     .megatron_versions = "0.19 or later (its arguments; 0.16.1 by a configuration in Python)",
     .defaults = R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 150000.0, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "swiglu_limit": 7.0,
       "swiglu_alpha": 1.702, "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
         "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}})",
     .counts_key_heads = true},
});

}  // namespace

extern const Knowledge k_gpt_oss;
constinit const Knowledge k_gpt_oss{.experts = kGptOssExperts, .families = kGptOssFamilies};

}  // namespace glu_ckpt
