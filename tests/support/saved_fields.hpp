#pragma once
/// Arguments as Megatron-LM saves them, by their names and values in JSON.

#include <map>
#include <string>

namespace glu_ckpt {

using SavedFields = std::map<std::string, std::string>;

inline const SavedFields kQwen3 = {
    {"num_layers", "3"},
    {"hidden_size", "64"},
    {"num_attention_heads", "4"},
    {"group_query_attention", "true"},
    {"num_query_groups", "2"},
    {"kv_channels", "32"},
    {"ffn_hidden_size", "80"},
    {"moe_ffn_hidden_size", "48"},
    {"num_experts", "8"},
    {"moe_router_topk", "3"},
    {"moe_router_pre_softmax", "false"},
    {"moe_router_score_function", "\"softmax\""},
    {"moe_layer_freq", "1"},
    {"vocab_size", "100"},
    {"max_position_embeddings", "128"},
    {"norm_epsilon", "1e-06"},
    {"rotary_base", "50000"},
    {"qk_layernorm", "true"},
    {"swiglu", "true"},
    {"add_bias_linear", "false"},
    {"untie_embeddings_and_output_weights", "true"},
    {"position_embedding_type", "\"rope\""},
    {"normalization", "\"RMSNorm\""},
};

inline std::string json_text(const SavedFields& fields) {
  std::string text;
  for (const auto& [name, value] : fields)
    text.append(text.empty() ? "{\"" : ", \"").append(name).append("\": ").append(value);
  return text + "}";
}

}  // namespace glu_ckpt
