#include "arch/config_defaults.hpp"

#include <algorithm>
#include <array>

namespace glu_ckpt {
namespace {

struct DefaultsRow {
  std::string_view model_type;
  std::string_view fields;
};

/// As the configuration classes of transformers 5.23.0 have them. What is None there, such as `num_experts_per_tok` of
/// dots1, is not here; neither is kimi_k2, whose class is not in transformers.
constexpr auto kDefaults = std::to_array<DefaultsRow>({
    {"mixtral", R"({"num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 1000000.0, "num_key_value_heads": 8})"},
    {"qwen2_moe", R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 10000.0, "num_key_value_heads": 16, "norm_topk_prob": false, "sliding_window": 4096})"},
    {"qwen3_moe", R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 10000.0, "num_key_value_heads": 4, "norm_topk_prob": false, "sliding_window": 4096})"},
    // Not `tie_word_embeddings`: the head is the multimodal model's, whose class has another value.
    {"qwen3_vl_moe_text", R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 128000,
       "rope_theta": 500000.0, "num_key_value_heads": 16})"},
    {"qwen3_next", R"({"num_experts_per_tok": 10, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 10000.0, "num_key_value_heads": 2, "head_dim": 256, "norm_topk_prob": true,
       "partial_rotary_factor": 0.25})"},
    {"qwen3_5_moe_text", R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
       "rope_theta": 10000.0, "num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25})"},
    {"deepseek_v2", R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0,
       "norm_topk_prob": false, "routed_scaling_factor": 1.0, "topk_method": "greedy"})"},
    {"deepseek_v3", R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
       "rope_theta": 10000.0, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4,
       "first_k_dense_replace": 3})"},
    {"glm4_moe_lite", R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 202752,
       "rope_theta": 10000.0, "norm_topk_prob": true, "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1,
       "first_k_dense_replace": 1})"},
    {"glm4_moe", R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 10000.0, "num_key_value_heads": 8, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
       "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5})"},
    {"dots1", R"({"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "rope_theta": 10000.0,
       "num_key_value_heads": 32, "norm_topk_prob": false, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
       "sliding_window": 4096, "max_window_layers": 62})"},
    {"gpt_oss", R"({"num_experts_per_tok": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 150000.0, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "swiglu_limit": 7.0,
       "swiglu_alpha": 1.702, "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
         "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}})"},
    {"llama4_text", R"({"num_experts_per_tok": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 500000.0, "num_key_value_heads": 8, "head_dim": 128, "use_qk_norm": true,
       "no_rope_layer_interval": 4, "attention_chunk_size": 8192, "attn_temperature_tuning": true})"},
    {"granitemoe", R"({"num_experts_per_tok": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
       "rope_theta": 10000.0, "attention_multiplier": 1.0})"},
    {"ernie4_5_moe", R"({"num_experts_per_tok": 6, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
       "rope_theta": 500000.0, "num_key_value_heads": 4, "moe_layer_start_index": 1, "tie_word_embeddings": true})"},
    {"olmoe", R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
       "rope_theta": 10000.0, "norm_topk_prob": false})"},
    {"minimax_m2", R"({"num_experts_per_tok": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 196608,
       "rope_theta": 5000000.0, "num_key_value_heads": 8, "head_dim": 128})"},
});

}  // namespace

std::string_view config_defaults(std::string_view model_type) {
  const auto found = std::ranges::find(kDefaults, model_type, &DefaultsRow::model_type);
  return found == kDefaults.end() ? "{}" : found->fields;
}

}  // namespace glu_ckpt
