#pragma once
/// Rows of arguments that several families have. A family lists some of these and rows of its own; a row that only
/// reads an argument follows one that writes it.

#include "families/arg_steps.hpp"

namespace glu_ckpt {

/// Every model has these.
inline constexpr auto kModelArgs = std::to_array<ArgRow>({
    {"torch_dtype", "", write_dtype, stored_dtype},
    {"num_hidden_layers", "num_layers", write_layers, as_integer},
    {"hidden_size", "hidden_size", write_extent<Dim::Hidden>, as_integer},
    {"vocab_size", "vocab_size", write_vocabulary, vocabulary},
    {"max_position_embeddings", "max_position_embeddings", write_positions, as_integer},
    {"tie_word_embeddings", "untie_embeddings_and_output_weights", write_untied, as_opposite},
    {"", "normalization", write_value, only, "RMSNorm"},
    {"rms_norm_eps", "norm_epsilon", write_epsilon, epsilon},
    {"", "position_embedding_type", write_positions_of_heads, rope_kind},
    {"rope_theta", "rotary_base", nullptr, rope_base},
    {"num_attention_heads", "num_attention_heads", write_heads, as_integer},
    {"", "moe_grouped_gemm", write_with_experts, nullptr, "True"},
    {"", "moe_router_dtype", write_with_experts, nullptr, "fp32"},
    {"", "moe_router_load_balancing_type", write_with_experts, nullptr, "none"},
    {"", "moe_shared_expert_intermediate_size", write_shared_width},
    {"", "moe_mlp_glu_interleave_size", write_glu_orders},
    {"", "mtp_num_layers", write_mtp_layers},
    {"", "attention_dropout", write_value, nullptr, "0.0"},
    {"", "hidden_dropout", write_value, nullptr, "0.0"},
    {"", "transformer_impl", write_value, nullptr, "transformer_engine"},
});

// ---- activation -------------------------------------------------------------------------------

inline constexpr auto kSwigluArgs = std::to_array<ArgRow>({
    {"hidden_act", "swiglu", write_swiglu, always, "True", "\"silu\""},
});
inline constexpr auto kNoBiasArgs = std::to_array<ArgRow>({{"", "add_bias_linear", nullptr, only, "False"}});

// ---- attention --------------------------------------------------------------------------------

inline constexpr auto kGroupedArgs = std::to_array<ArgRow>({
    {"num_key_value_heads", "num_query_groups", write_query_groups, key_heads},
    {"head_dim", "kv_channels", write_extent<Dim::HeadDim>, as_integer},
    {"", "add_qkv_bias", write_attention_biases},
});
inline constexpr auto kQkNormArgs = std::to_array<ArgRow>({{"", "qk_layernorm", write_qk_norms, head_norms, "True"}});
inline constexpr auto kWideNormArgs = std::to_array<ArgRow>({{"", "qk_layernorm", write_qk_norms, wide_norms, "True"}});
/// Every layer sees all tokens, by rotary embedding. Some families have windows that config.json is not made for.
inline constexpr auto kUsualLayerArgs = std::to_array<ArgRow>({
    {"", "window_size", write_window, no_window},
    {"", "no_rope_freq", nullptr, all_with_rope},
});
inline constexpr auto kYarnArgs =
    std::to_array<ArgRow>({{"rope_scaling", "rotary_scaling_factor", nullptr, rope_scaling}});
/// Llama 3's scaling, of which Megatron-Core has that of Llama 3.1.
inline constexpr auto kLlama3RopeArgs =
    std::to_array<ArgRow>({{"rope_scaling", "use_rope_scaling", nullptr, llama3_scaling}});
inline constexpr auto kPartialRopeArgs =
    std::to_array<ArgRow>({{"partial_rotary_factor", "rotary_percent", nullptr, as_float}});
inline constexpr auto kInterleavedRopeArgs =
    std::to_array<ArgRow>({{"", "rotary_interleaved", nullptr, always, "True"}});
inline constexpr auto kLatentArgs = std::to_array<ArgRow>({
    {"", "multi_latent_attention", write_value, always, "True"},
    {"num_key_value_heads", "num_attention_heads", nullptr, as_integer},
    {"q_lora_rank", "q_lora_rank", write_query_latent, query_latent},
    {"kv_lora_rank", "kv_lora_rank", write_extent<Dim::KvLora>, as_integer},
    {"qk_nope_head_dim", "qk_head_dim", write_integer, as_integer},
    {"qk_rope_head_dim", "qk_pos_emb_head_dim", write_integer, as_integer},
    {"v_head_dim", "v_head_dim", write_integer, as_integer},
    {"", "qk_layernorm", write_value, nullptr, "True"},
    {"rms_norm_eps", "", write_latent_epsilon},
    {"", "window_size", nullptr, no_window},
    {"", "no_rope_freq", nullptr, all_with_rope},
});
inline constexpr auto kLatentYarnArgs =
    std::to_array<ArgRow>({{"rope_scaling", "rotary_scaling_factor", nullptr, rope_scaling, "", "null"}});
/// DeepSeek's sparse attention.
inline constexpr auto kSparseArgs = std::to_array<ArgRow>({
    {"", "experimental_attention_variant", write_value, always, "dsa"},
    {"index_n_heads", "dsa_indexer_n_heads", write_integer, as_integer},
    {"index_head_dim", "dsa_indexer_head_dim", write_integer, as_integer},
    {"index_topk", "dsa_indexer_topk", write_integer, as_integer},
    {"", "dsa_indexer_k_norm_epsilon", write_value, indexer_epsilon, "1e-6"},
    {"indexer_types", "dsa_indexer_topk_freq", write_indexers, indexer_kinds},
});
/// GatedDeltaNet in most layers, and attention with a gate in the others.
inline constexpr auto kDeltaArgs = std::to_array<ArgRow>({
    {"layer_types", "linear_attention_freq", write_delta, delta_kinds},
    {"", "experimental_attention_variant", nullptr, only, "gated_delta_net"},
    {"linear_conv_kernel_dim", "linear_conv_kernel_dim", write_integer, as_integer},
    {"linear_key_head_dim", "linear_key_head_dim", write_integer, as_integer},
    {"linear_value_head_dim", "linear_value_head_dim", write_integer, as_integer},
    {"linear_num_key_heads", "linear_num_key_heads", write_integer, as_integer},
    {"linear_num_value_heads", "linear_num_value_heads", write_integer, as_integer},
    {"", "attention_output_gate", write_value, always, "True"},
    {"", "apply_layernorm_1p", write_value, zero_centred, "True"},
    {"mtp_num_hidden_layers", "mtp_num_layers", nullptr, as_count},
});

// ---- experts ----------------------------------------------------------------------------------

inline constexpr auto kTopkArgs =
    std::to_array<ArgRow>({{"num_experts_per_tok", "moe_router_topk", write_router, as_integer}});
inline constexpr auto kDenseFirstArgs =
    std::to_array<ArgRow>({{"first_k_dense_replace", "moe_layer_freq", write_expert_layers, first_dense}});
inline constexpr auto kExpertsEverywhereArgs =
    std::to_array<ArgRow>({{"", "moe_layer_freq", write_expert_layers, only_expert_layers}});
/// The width of an expert and that of dense layers, where both are there.
inline constexpr auto kTwoWidthArgs = std::to_array<ArgRow>({
    {"intermediate_size", "ffn_hidden_size", write_dense_width, as_integer},
    {"moe_intermediate_size", "moe_ffn_hidden_size", write_expert_width, as_integer},
});
/// No layer has experts.
inline constexpr auto kDenseArgs = std::to_array<ArgRow>({
    {"intermediate_size", "ffn_hidden_size", write_dense_width, as_integer},
    {"", "num_experts", nullptr, no_experts},
});
/// intermediate_size is the width of an expert.
inline constexpr auto kOneWidthArgs = std::to_array<ArgRow>({
    {"num_local_experts", "num_experts", write_num_experts, as_integer},
    {"", "ffn_hidden_size", write_dense_width},
    {"intermediate_size", "moe_ffn_hidden_size", write_expert_width, as_integer},
});
inline constexpr auto kQwenExpertArgs = std::to_array<ArgRow>({
    {"num_experts", "num_experts", write_num_experts, as_integer},
    {"mlp_only_layers", "moe_layer_freq", write_expert_layers, dense_layers},
});
inline constexpr auto kSharedExpertArgs = std::to_array<ArgRow>({
    {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", nullptr, shared_width},
    {"", "moe_shared_expert_gate", nullptr, always, "True"},
});

// ---- routing ----------------------------------------------------------------------------------

inline constexpr auto kSoftmaxArgs =
    std::to_array<ArgRow>({{"", "moe_router_score_function", nullptr, only, "softmax"}});
/// The weights of the chosen experts are divided by their sum, whatever config.json says.
inline constexpr auto kRenormalisedArgs =
    std::to_array<ArgRow>({{"", "moe_router_pre_softmax", nullptr, softmax_not_first}});
inline constexpr auto kNormTopkArgs =
    std::to_array<ArgRow>({{"norm_topk_prob", "moe_router_pre_softmax", nullptr, as_opposite}});
/// DeepSeek-V3's routing and its relatives': sigmoid, a correction bias, groups, and a shared expert.
inline constexpr auto kCorrectedArgs = std::to_array<ArgRow>({
    {"n_routed_experts", "num_experts", write_num_experts, as_integer},
    {"n_shared_experts", "moe_shared_expert_intermediate_size", nullptr, shared_experts},
    {"norm_topk_prob", "moe_router_score_function", nullptr, always, "sigmoid", "true"},
    {"n_group", "moe_router_num_groups", nullptr, expert_groups},
    {"topk_group", "moe_router_group_topk", nullptr, as_one_or_more},
    {"routed_scaling_factor", "moe_router_topk_scaling_factor", nullptr, as_factor},
});
inline constexpr auto kExpertBiasArgs =
    std::to_array<ArgRow>({{"", "moe_router_enable_expert_bias", nullptr, always, "True"}});
inline constexpr auto kNoauxArgs = std::to_array<ArgRow>({
    {"topk_method", "moe_router_enable_expert_bias", nullptr, always, "True", "\"noaux_tc\""},
    {"scoring_func", "moe_router_score_function", nullptr, always, "sigmoid", "\"sigmoid\""},
});
inline constexpr auto kNextTokenArgs =
    std::to_array<ArgRow>({{"num_nextn_predict_layers", "mtp_num_layers", nullptr, as_count}});

}  // namespace glu_ckpt
