#include "arch/config_ranges.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "families/family.hpp"

namespace glu_ckpt {
namespace {

using Type = JsonType;

constexpr double kMostLayers = 65536, kMostExperts = 1 << 20, kMostWidth = 1 << 28, kMostTokens = 1LL << 40;

constexpr auto kFields = std::to_array<JsonField>({
    // sizes
    {"num_hidden_layers", Type::Integer, 1, kMostLayers},
    {"hidden_size", Type::Integer, 1, kMostWidth},
    {"vocab_size", Type::Integer, 1, kMostWidth},
    {"max_position_embeddings", Type::Integer, 1, kMostTokens},
    {"intermediate_size", Type::Integer, 0, kMostWidth},
    {"intermediate_size_mlp", Type::Integer, 0, kMostWidth},
    {"tie_word_embeddings", Type::Flag},
    // attention
    {"num_attention_heads", Type::Integer, 1, kMostExperts},
    {"num_key_value_heads", Type::Integer, 1, kMostExperts},
    {"head_dim", Type::Integer, 1, kMostWidth},
    {"q_lora_rank", Type::Integer, 0, kMostWidth},
    {"kv_lora_rank", Type::Integer, 1, kMostWidth},
    {"qk_nope_head_dim", Type::Integer, 0, kMostWidth},
    {"qk_rope_head_dim", Type::Integer, 0, kMostWidth},
    {"v_head_dim", Type::Integer, 1, kMostWidth},
    {"index_n_heads", Type::Integer, 1, kMostExperts},
    {"index_head_dim", Type::Integer, 1, kMostWidth},
    {"index_topk", Type::Integer, 1, kMostTokens},
    {"index_topk_freq", Type::Integer, 0, kMostLayers},
    {"index_skip_topk_offset", Type::Integer, 0, kMostLayers},
    {"indexer_types", Type::Texts},
    {"mamba_num_heads", Type::Integer, 1, kMostExperts},
    {"mamba_head_dim", Type::Integer, 1, kMostWidth},
    {"n_groups", Type::Integer, 1, kMostExperts},
    {"ssm_state_size", Type::Integer, 1, kMostWidth},
    {"conv_kernel", Type::Integer, 1, kMostWidth},
    {"use_conv_bias", Type::Flag},
    {"use_bias", Type::Flag},
    {"mamba_proj_bias", Type::Flag},
    {"mlp_bias", Type::Flag},
    {"hybrid_override_pattern", Type::Text},
    {"layers_block_type", Type::Texts},
    {"linear_conv_kernel_dim", Type::Integer, 1, kMostWidth},
    {"linear_key_head_dim", Type::Integer, 1, kMostWidth},
    {"linear_value_head_dim", Type::Integer, 1, kMostWidth},
    {"linear_num_key_heads", Type::Integer, 1, kMostExperts},
    {"linear_num_value_heads", Type::Integer, 1, kMostExperts},
    {"full_attention_interval", Type::Integer, 1, kMostLayers},
    {"layer_types", Type::Texts},
    {"sliding_window", Type::Integer, 0, kMostTokens},
    {"use_sliding_window", Type::Flag},
    {"max_window_layers", Type::Integer, 0, kMostLayers},
    {"attention_chunk_size", Type::Integer, 1, kMostTokens},
    {"attention_bias", Type::Flag},
    {"qkv_bias", Type::Flag},
    {"use_qk_norm", Type::Flag},
    {"attention_multiplier", Type::Number, kTiny, kHuge},
    // norms and activation
    {"rms_norm_eps", Type::Number, kTiny, 1},
    {"layer_norm_eps", Type::Number, kTiny, 1},
    {"norm_eps", Type::Number, kTiny, 1},
    {"hidden_act", Type::Text},
    {"hidden_activation", Type::Text},
    {"swiglu_limit", Type::Number, kTiny, kHuge},
    {"swiglu_alpha", Type::Number, kTiny, kHuge},
    {"embedding_multiplier", Type::Number, kTiny, kHuge},
    {"residual_multiplier", Type::Number, kTiny, kHuge},
    {"logits_scaling", Type::Number, kTiny, kHuge},
    // positions
    {"rope_theta", Type::Number, kTiny, kHuge},
    {"partial_rotary_factor", Type::Number, kTiny, 1},
    {"rotary_dim", Type::Number, 1, kMostWidth},
    {"rope_interleave", Type::Flag},
    {"no_rope_layers", Type::Integers, 0, kMostLayers},
    {"no_rope_layer_interval", Type::Integer, 1, kMostLayers},
    {"rope_scaling", Type::Object},
    {"rope_parameters", Type::Object},
    {"rope_*.rope_type", Type::Text},
    {"rope_*.type", Type::Text},
    {"rope_*.rope_theta", Type::Number, kTiny, kHuge},
    {"rope_*.partial_rotary_factor", Type::Number, kTiny, 1},
    {"rope_*.factor", Type::Number, kTiny, kHuge},
    {"rope_*.attention_factor", Type::Number, kTiny, kHuge},
    {"rope_*.beta_fast", Type::Number, kTiny, kHuge},
    {"rope_*.beta_slow", Type::Number, 0, kHuge},
    {"rope_*.mscale", Type::Number, 0, kHuge},
    {"rope_*.mscale_all_dim", Type::Number, 0, kHuge},
    {"rope_*.original_max_position_embeddings", Type::Number, 1, kMostTokens},
    {"rope_*.truncate", Type::Flag},
    {"rope_*.mrope_section", Type::Integers, 0, kMostWidth},
    // experts
    {"num_experts", Type::Integer, 0, kMostExperts},
    {"num_local_experts", Type::Integer, 0, kMostExperts},
    {"n_routed_experts", Type::Integer, 0, kMostExperts},
    {"moe_num_experts", Type::Integer, 0, kMostExperts},
    {"moe_intermediate_size", Type::Integer, 0, kMostWidth},
    {"moe_latent_size", Type::Integer, 0, kMostWidth},
    {"moe_shared_expert_intermediate_size", Type::Integer, 0, kMostWidth},
    {"n_shared_experts", Type::Integer, 0, kMostExperts},
    {"num_shared_experts", Type::Integer, 0, kMostExperts},
    {"moe_num_shared_experts", Type::Integer, 0, kMostExperts},
    {"shared_expert_intermediate_size", Type::Integer, 0, kMostWidth},
    {"num_experts_per_tok", Type::Integer, 0, kMostExperts},
    {"moe_topk", Type::Integer, 0, kMostExperts},
    {"moe_k", Type::Integer, 0, kMostExperts},
    {"norm_topk_prob", Type::Flag},
    {"scoring_func", Type::Text},
    {"topk_method", Type::Text},
    {"n_group", Type::Integer, 1, kMostExperts},
    {"topk_group", Type::Integer, 1, kMostExperts},
    {"routed_scaling_factor", Type::Number, kTiny, kHuge},
    // the layers that have experts
    {"first_k_dense_replace", Type::Integer, 0, kMostLayers},
    {"decoder_sparse_step", Type::Integer, 1, kMostLayers},
    {"mlp_only_layers", Type::Integers, 0, kMostLayers},
    {"mlp_layer_types", Type::Texts},
    {"moe_layers", Type::Integers, 0, kMostLayers},
    {"interleave_moe_layer_step", Type::Integer, 0, kMostLayers},
    {"moe_layer_start_index", Type::Integer, 0, kMostLayers},
    {"moe_layer_end_index", Type::Integer, -1, kMostLayers},
    {"moe_layer_interval", Type::Integer, 1, kMostLayers},
    {"num_nextn_predict_layers", Type::Integer, 0, kMostLayers},
    {"mtp_num_hidden_layers", Type::Integer, 0, kMostLayers},
    // how weights are quantized; src/quant reads what is in it
    {"quantization_config", Type::Object},
    {"compression_config", Type::Object},
});

/// Fields that must not be null: transformers does not take null for "not given" here, but computes with it, or stops.
constexpr auto kNeverNull = std::to_array<std::string_view>(
    {"rope_interleave", "rope_*.rope_theta", "rope_*.partial_rotary_factor", "rope_*.rope_type"});

void check_field(const JsonField& row, const std::string& name, const JsonValue& value) {
  if (value.kind() == JsonKind::Null && std::ranges::find(kNeverNull, row.name) != kNeverNull.end())
    fail(ErrorCode::ConfigJson, {}, "config.json: {} is null: give it a value, or leave it out", name);
  if (const std::string fault = fault_of(row, name, value); !fault.empty())
    fail(ErrorCode::ConfigJson, {}, "config.json: {}", fault);
}

/// Checks the fields of `object`, which are called `prefix` and their key.
void check_object(const Family& family, const JsonValue& object, const std::string& prefix) {
  for (const auto& [key, value] : object.members()) {
    const std::string name = prefix + std::string(key);
    const std::string row_name = prefix == "rope_scaling." || prefix == "rope_parameters."
                                     ? "rope_*." + std::string(key)
                                     : std::string(family.usual_word(name));
    const auto row = std::ranges::find(kFields, row_name, &JsonField::name);
    if (row == kFields.end()) continue;
    check_field(*row, name, value);
    if (row->type == Type::Object && value.kind() == JsonKind::Object) check_object(family, value, name + ".");
  }
}

/// The first of the fields that is a number.
std::optional<std::pair<std::string_view, i64>> first_number(const JsonValue& object, Spellings names) {
  for (const std::string_view name : names)
    if (const auto number = object.find<i64>(name)) return std::pair(name, *number);
  return std::nullopt;
}

std::optional<std::pair<std::string_view, i64>> number_of_experts(const JsonValue& object) {
  return first_number(object, kExpertCounts);
}

/// Refuses a choice of none of the experts, and one of more than there are.
void check_choice(const JsonValue& object) {
  const auto experts = number_of_experts(object);
  const auto chosen = first_number(object, {"num_experts_per_tok", "moe_topk", "moe_k"});
  if (!experts || !chosen || experts->second == 0) return;
  if (chosen->second < 1 || chosen->second > experts->second)
    fail(ErrorCode::ConfigJson, {}, "config.json: {} is {}, and there are {} experts to choose from ({})",
         chosen->first, chosen->second, experts->second, experts->first);
}

/// Refuses groups of experts that are not of one size, and more groups to choose from than there are.
void check_groups(const JsonValue& object) {
  const auto groups = first_number(object, {"n_group"});
  const auto chosen = first_number(object, {"topk_group"});
  if (groups && chosen && chosen->second > groups->second)
    fail(ErrorCode::ConfigJson, {}, "config.json: topk_group is {}, and there are {} groups to choose from (n_group)",
         chosen->second, groups->second);
  const auto experts = number_of_experts(object);
  if (groups && experts && groups->second > 0 && experts->second % groups->second != 0)
    fail(ErrorCode::ConfigJson, {}, "config.json: {} is {}, which {} groups (n_group) do not share alike",
         experts->first, experts->second, groups->second);
}

/// Refuses query heads that key heads cannot share alike.
void check_heads(const JsonValue& object) {
  const auto heads = first_number(object, {"num_attention_heads"});
  const auto key_heads = first_number(object, {"num_key_value_heads"});
  if (heads && key_heads && heads->second % key_heads->second != 0)
    fail(ErrorCode::ConfigJson, {}, "config.json: num_attention_heads {} is no multiple of num_key_value_heads {}",
         heads->second, key_heads->second);
}

/// Refuses lists that say something of each layer and are not as long as there are layers; MTP's may be in them.
void check_layer_lists(const JsonValue& object) {
  const auto layers = first_number(object, {"num_hidden_layers"});
  if (!layers) return;
  const auto mtp = first_number(object, {"num_nextn_predict_layers", "mtp_num_hidden_layers"});
  for (const std::string_view name : {"layer_types", "mlp_layer_types", "no_rope_layers"}) {
    const auto list = object.find(name);
    if (!list || list->kind() != JsonKind::Array || list->size() == 0) continue;
    const auto size = static_cast<i64>(list->size());
    if (size != layers->second && size != layers->second + (mtp ? mtp->second : 0))
      fail(ErrorCode::ConfigJson, {}, "config.json: {} has {} entries for {} layers (num_hidden_layers)", name, size,
           layers->second);
  }
}

}  // namespace

void check_config_ranges(const std::string& config) {
  constexpr std::size_t kDeepestConfig = 64;
  const JsonDocument document(config, kDeepestConfig);
  if (document.fault() || document.root().kind() != JsonKind::Object) return;
  const JsonValue root = document.root();
  const auto inner = find_text_config(root);
  const Family* const family =
      find_family((inner ? *inner : root).find<std::string_view>("model_type").value_or(std::string_view()));
  // A model of a family that no rule knows may mean something else by a name.
  if (family == nullptr) return;
  check_object(*family, root, "");
  if (inner) check_object(*family, *inner, "");
  check_choice(inner ? *inner : root);
  check_groups(inner ? *inner : root);
  check_heads(inner ? *inner : root);
  check_layer_lists(inner ? *inner : root);
}

}  // namespace glu_ckpt
