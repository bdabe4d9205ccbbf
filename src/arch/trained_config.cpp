/// One table, kRows: which key of config.json is made of which argument. A family is added by its bit in the rows that
/// it has, and by its line in trained_family.cpp.

#include "arch/trained_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "arch/trained_family.hpp"
#include "families/yarn_scale.hpp"

namespace glu_ckpt {
namespace {

std::string float_word(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == text.npos ? text + ".0" : text;
}

std::string flag_word(bool value) { return value ? "true" : "false"; }

struct ConfigRow {
  std::string_view key;
  u32 families;
  /// Megatron-LM's name of what it is made of; empty where it follows from what Megatron-Core always does.
  std::string_view argument;
  /// Returns the value as JSON; none: the key is left out.
  std::optional<std::string> (*value)(SavedArgs& args, const ConfigRow& row);
};
using Value = std::optional<std::string>;

Value as_integer(SavedArgs& args, const ConfigRow& row) { return fmt::format("{}", args.needed(row.argument)); }
Value as_float(SavedArgs& args, const ConfigRow& row) { return float_word(args.needed_number(row.argument)); }
Value as_flag(SavedArgs& args, const ConfigRow& row) { return flag_word(args.flag(row.argument)); }
Value as_opposite(SavedArgs& args, const ConfigRow& row) { return flag_word(!args.needed_flag(row.argument)); }
Value as_count(SavedArgs& args, const ConfigRow& row) {
  return fmt::format("{}", args.integer(row.argument).value_or(0));
}
Value as_one_or_more(SavedArgs& args, const ConfigRow& row) {
  return fmt::format("{}", args.integer(row.argument).value_or(1));
}
Value always_true(SavedArgs&, const ConfigRow&) { return "true"; }
Value always_false(SavedArgs&, const ConfigRow&) { return "false"; }
Value always_one(SavedArgs&, const ConfigRow&) { return "1.0"; }
Value always_silu(SavedArgs&, const ConfigRow&) { return "\"silu\""; }
Value always_sigmoid(SavedArgs&, const ConfigRow&) { return "\"sigmoid\""; }
Value always_noaux(SavedArgs&, const ConfigRow&) { return "\"noaux_tc\""; }
Value always_greedy(SavedArgs&, const ConfigRow&) { return "\"greedy\""; }

/// 0.16's name, and that of the field that newer versions make arguments of.
Value epsilon(SavedArgs& args, const ConfigRow& row) {
  if (!args.number(row.argument))
    if (const auto value = args.number("layernorm_epsilon")) return float_word(*value);
  return as_float(args, row);
}

/// Each head has its own key without query groups.
Value key_heads(SavedArgs& args, const ConfigRow& row) {
  if (!args.flag("group_query_attention")) return fmt::format("{}", args.needed("num_attention_heads"));
  return as_integer(args, row);
}

/// Many runs take their vocabulary from a tokenizer; the rows that are stored are then all that is known.
Value vocabulary(SavedArgs& args, const ConfigRow& row) {
  if (const auto words = args.integer(row.argument)) return fmt::format("{}", *words);
  const TensorRef* const embedding = args.tensor(kEmbeddingKey);
  if (embedding != nullptr && embedding->shape.size() == 2) return fmt::format("{}", embedding->shape[0]);
  return as_integer(args, row);
}

Value stored_dtype(SavedArgs& args, const ConfigRow&) {
  const TensorRef* const norm = args.tensor("decoder.final_layernorm.weight");
  if (norm == nullptr) return std::nullopt;
  switch (norm->dtype) {
    case Dtype::BF16: return "\"bfloat16\"";
    case Dtype::F16: return "\"float16\"";
    case Dtype::F32: return "\"float32\"";
    default: return std::nullopt;
  }
}

Value query_latent(SavedArgs& args, const ConfigRow& row) {
  const auto rank = args.integer(row.argument);
  return rank ? fmt::format("{}", *rank) : "null";
}

Value shared_experts(SavedArgs& args, const ConfigRow& row) {
  const i64 shared = args.needed(row.argument), routed = args.needed("moe_ffn_hidden_size");
  if (routed < 1 || shared % routed != 0)
    args.faults.push_back(fmt::format("{} {} is no multiple of moe_ffn_hidden_size {}, as {} needs", row.argument,
                                      shared, routed, row.key));
  return fmt::format("{}", routed < 1 ? 0 : shared / routed);
}

Value shared_experts_if_any(SavedArgs& args, const ConfigRow& row) {
  return args.integer(row.argument).value_or(0) == 0 ? Value("0") : shared_experts(args, row);
}

/// Llama's shared expert is as wide as a routed one.
Value llama_width(SavedArgs& args, const ConfigRow& row) {
  const i64 shared = args.needed("moe_shared_expert_intermediate_size"), routed = args.needed(row.argument);
  if (shared != routed)
    args.faults.push_back(fmt::format("moe_shared_expert_intermediate_size {} is not {} {}, as {} needs", shared,
                                      row.argument, routed, row.key));
  return fmt::format("{}", routed);
}

Value first_dense(SavedArgs& args, const ConfigRow& row) {
  const std::vector<bool> experts = args.expert_layers();
  const auto first = std::ranges::find(experts, true);
  if (std::find(first, experts.end(), false) != experts.end())
    args.faults.push_back(
        fmt::format("{} has a dense layer behind a MoE layer, which {} cannot say", row.argument, row.key));
  return fmt::format("{}", first - experts.begin());
}

template <typename Text>
std::string list_of(const std::vector<bool>& flags, const Text& text) {
  std::string list;
  for (std::size_t layer = 0; layer < flags.size(); ++layer) {
    const std::string item = text(layer, flags[layer]);
    if (!item.empty()) list += (list.empty() ? "" : ", ") + item;
  }
  return "[" + list + "]";
}

Value layer_kinds(SavedArgs& args, const ConfigRow&) {
  return list_of(args.expert_layers(), [](std::size_t, bool experts) { return experts ? "\"sparse\"" : "\"dense\""; });
}
Value dense_layers(SavedArgs& args, const ConfigRow&) {
  return list_of(args.expert_layers(),
                 [](std::size_t layer, bool experts) { return experts ? std::string() : fmt::format("{}", layer); });
}
Value expert_layers(SavedArgs& args, const ConfigRow&) {
  return list_of(args.expert_layers(),
                 [](std::size_t layer, bool experts) { return experts ? fmt::format("{}", layer) : std::string(); });
}
/// Gives N where each N-th layer has experts; other patterns are in `moe_layers` alone.
Value expert_step(SavedArgs& args, const ConfigRow&) {
  const std::vector<bool> experts = args.expert_layers();
  const auto step = static_cast<std::size_t>(std::ranges::find(experts, true) - experts.begin()) + 1;
  for (std::size_t layer = 0; layer < experts.size(); ++layer)
    if (experts[layer] != ((layer + 1) % step == 0)) return std::nullopt;
  return fmt::format("{}", step);
}
Value attention_kinds(SavedArgs& args, const ConfigRow& row) {
  const bool delta = row.argument == "linear_attention_freq";
  const std::string_view marked = delta ? "\"linear_attention\"" : "\"sliding_attention\"";
  const std::vector<bool> flags = delta           ? args.delta_layers()
                                  : args.window() ? args.window_layers()
                                                  : std::vector<bool>(args.delta_layers().size());
  return list_of(
      flags, [&](std::size_t, bool flag) { return flag ? std::string(marked) : std::string("\"full_attention\""); });
}
Value all_full_attention(SavedArgs& args, const ConfigRow&) {
  return list_of(std::vector<bool>(static_cast<std::size_t>(args.layers())),
                 [](std::size_t, bool) { return "\"full_attention\""; });
}
Value all_with_rope(SavedArgs& args, const ConfigRow&) {
  return list_of(std::vector<bool>(static_cast<std::size_t>(args.layers())), [](std::size_t, bool) { return "1"; });
}

/// Megatron-Core counts the tokens to the left of a token, Hugging Face that one as well.
Value window_width(SavedArgs& args, const ConfigRow&) {
  const auto window = args.window();
  return window ? fmt::format("{}", *window + 1) : "null";
}

Value usual_softmax_scale(SavedArgs& args, const ConfigRow& row) {
  return float_word(1.0 / std::sqrt(static_cast<double>(std::max<i64>(1, args.needed(row.argument)))));
}

/// `usual` is what Megatron builds models with in versions that have no argument for the number.
std::string yarn_number(const SavedArgs& args, std::string_view key, std::initializer_list<std::string_view> names,
                        double usual) {
  double value = usual;
  for (const std::string_view name : names)
    if (const auto said = args.number(name)) value = *said;
  return fmt::format(",\n    \"{}\": {}", key, float_word(value));
}

Value rope_scaling(SavedArgs& args, const ConfigRow& row) {
  const bool latent = args.flag("multi_latent_attention");
  if ((latent ? args.text("rope_type") : args.text("position_embedding_type")) != "yarn") return "null";
  constexpr double kLength = 4096;
  std::string text = fmt::format("{{\n    \"rope_type\": \"yarn\",\n    \"type\": \"yarn\",\n    \"factor\": {}",
                                 float_word(args.needed_number(row.argument)));
  text += yarn_number(args, "beta_fast", {"beta_fast", "yarn_beta_fast"}, 32);
  text += yarn_number(args, "beta_slow", {"beta_slow", "yarn_beta_slow"}, 1);
  const double length = args.number("original_max_position_embeddings")
                            .value_or(args.number("yarn_original_max_position_embeddings").value_or(kLength));
  text += fmt::format(",\n    \"original_max_position_embeddings\": {}", static_cast<i64>(length));
  const double all_dim = args.number("mscale_all_dim").value_or(0.0), mscale = args.number("mscale").value_or(1.0);
  // transformers has no such factor where both are 1 and 0.
  if (latent || all_dim != 0.0) {
    text += fmt::format(",\n    \"mscale\": {}", float_word(mscale));
    text += fmt::format(",\n    \"mscale_all_dim\": {}", float_word(all_dim));
  }
  // transformers takes the quotient of both scales only where neither is 0. Else it takes the scale that the factor
  // alone gives, unless attention_factor says another one.
  const double factor = args.needed_number(row.argument);
  const double scale = yarn_scale(factor, mscale) / yarn_scale(factor, all_dim);
  if ((mscale == 0.0 || all_dim == 0.0) && scale != yarn_scale(factor, 1.0))
    text += fmt::format(",\n    \"attention_factor\": {}", float_word(scale));
  if (!latent)
    text += fmt::format(",\n    \"truncate\": {}", flag_word(!args.has("yarn_correction_range_round_to_int") ||
                                                             args.flag("yarn_correction_range_round_to_int")));
  return text + "\n  }";
}

/// Says which key of config.json is made of which argument.
constexpr auto kRows = std::to_array<ConfigRow>({
    {"hidden_act", kEveryFamily, "swiglu", always_silu},
    {"torch_dtype", kEveryFamily, "", stored_dtype},
    {"num_hidden_layers", kEveryFamily, "num_layers", as_integer},
    {"hidden_size", kEveryFamily, "hidden_size", as_integer},
    {"vocab_size", kEveryFamily, "vocab_size", vocabulary},
    {"max_position_embeddings", kEveryFamily, "max_position_embeddings", as_integer},
    {"tie_word_embeddings", kEveryFamily, "untie_embeddings_and_output_weights", as_opposite},
    {"rms_norm_eps", kEveryFamily, "norm_epsilon", epsilon},
    {"rope_theta", kEveryFamily, "rotary_base", as_float},
    {"rope_scaling", kLatentBits | kGptOssBit, "rotary_scaling_factor", rope_scaling},
    {"partial_rotary_factor", kGlmBit | kDeltaBits, "rotary_percent", as_float},
    // attention
    {"num_attention_heads", kEveryFamily, "num_attention_heads", as_integer},
    {"num_key_value_heads", kEveryFamily & ~kLatentBits, "num_query_groups", key_heads},
    {"num_key_value_heads", kLatentBits, "num_attention_heads", as_integer},
    {"head_dim", kEveryFamily & ~kLatentBits, "kv_channels", as_integer},
    {"q_lora_rank", kLatentBits, "q_lora_rank", query_latent},
    {"kv_lora_rank", kLatentBits, "kv_lora_rank", as_integer},
    {"qk_nope_head_dim", kLatentBits, "qk_head_dim", as_integer},
    {"qk_rope_head_dim", kLatentBits, "qk_pos_emb_head_dim", as_integer},
    {"v_head_dim", kLatentBits, "v_head_dim", as_integer},
    {"attention_bias", kGlmBit, "add_qkv_bias", as_flag},
    {"qkv_bias", kQwen2Bit, "add_qkv_bias", as_flag},
    {"use_bias", kErnieBit, "add_bias_linear", always_false},
    {"attention_bias", kGptOssBit, "add_bias_linear", always_true},
    {"use_qk_norm", kGlmBit, "qk_layernorm", as_flag},
    {"use_qk_norm", kLlamaBit, "qk_l2_norm", as_flag},
    {"sliding_window", kGptOssBit, "window_size", window_width},
    {"layer_types", kGptOssBit, "window_attn_skip_freq", attention_kinds},
    {"layer_types", kDeltaBits, "linear_attention_freq", attention_kinds},
    {"layer_types", kLlamaBit, "", all_full_attention},
    {"no_rope_layers", kLlamaBit, "no_rope_freq", all_with_rope},
    {"attn_temperature_tuning", kLlamaBit, "", always_false},
    {"linear_conv_kernel_dim", kDeltaBits, "linear_conv_kernel_dim", as_integer},
    {"linear_key_head_dim", kDeltaBits, "linear_key_head_dim", as_integer},
    {"linear_value_head_dim", kDeltaBits, "linear_value_head_dim", as_integer},
    {"linear_num_key_heads", kDeltaBits, "linear_num_key_heads", as_integer},
    {"linear_num_value_heads", kDeltaBits, "linear_num_value_heads", as_integer},
    {"attention_multiplier", kGraniteBit, "kv_channels", usual_softmax_scale},
    {"embedding_multiplier", kGraniteBit, "", always_one},
    {"residual_multiplier", kGraniteBit, "", always_one},
    {"logits_scaling", kGraniteBit, "", always_one},
    // experts and dense layers
    {"num_local_experts", kPlainWidthBits, "num_experts", as_integer},
    {"num_experts", kQwenBits, "num_experts", as_integer},
    {"moe_num_experts", kErnieBit, "num_experts", as_integer},
    {"n_routed_experts", kV2Bit | kSigmoidBits, "num_experts", as_integer},
    {"intermediate_size", kPlainWidthBits & ~kLlamaBit, "moe_ffn_hidden_size", as_integer},
    {"intermediate_size", kLlamaBit, "moe_ffn_hidden_size", llama_width},
    {"intermediate_size_mlp", kLlamaBit, "ffn_hidden_size", as_integer},
    {"intermediate_size", kEveryFamily & ~kPlainWidthBits, "ffn_hidden_size", as_integer},
    {"moe_intermediate_size", kEveryFamily & ~kPlainWidthBits, "moe_ffn_hidden_size", as_integer},
    {"n_shared_experts", kV2Bit | kSigmoidBits, "moe_shared_expert_intermediate_size", shared_experts},
    {"moe_num_shared_experts", kErnieBit, "moe_shared_expert_intermediate_size", shared_experts_if_any},
    {"shared_expert_intermediate_size", kQwen2Bit | kDeltaBits, "moe_shared_expert_intermediate_size", as_integer},
    {"first_k_dense_replace", kV2Bit | kSigmoidBits, "moe_layer_freq", first_dense},
    {"moe_layer_start_index", kErnieBit, "moe_layer_freq", first_dense},
    {"mlp_layer_types", kLiteBit, "moe_layer_freq", layer_kinds},
    {"mlp_only_layers", kQwenBits, "moe_layer_freq", dense_layers},
    {"moe_layers", kLlamaBit, "moe_layer_freq", expert_layers},
    {"interleave_moe_layer_step", kLlamaBit, "moe_layer_freq", expert_step},
    {"num_nextn_predict_layers", kLatentV3Bits | kGlmBit, "mtp_num_layers", as_count},
    {"mtp_num_hidden_layers", kDeltaBits, "mtp_num_layers", as_count},
    // routing
    {"num_experts_per_tok", kEveryFamily & ~kErnieBit, "moe_router_topk", as_integer},
    {"moe_k", kErnieBit, "moe_router_topk", as_integer},
    {"norm_topk_prob", kQwenBits, "moe_router_pre_softmax", as_opposite},
    {"norm_topk_prob", kV2Bit, "moe_router_pre_softmax", always_false},
    {"norm_topk_prob", kSigmoidBits, "moe_router_score_function", always_true},
    {"topk_method", kV2Bit, "moe_router_num_groups", always_greedy},
    {"topk_method", kLatentV3Bits, "moe_router_enable_expert_bias", always_noaux},
    {"scoring_func", kLatentV3Bits, "moe_router_score_function", always_sigmoid},
    {"n_group", kSigmoidBits, "moe_router_num_groups", as_one_or_more},
    {"topk_group", kSigmoidBits, "moe_router_group_topk", as_one_or_more},
    {"routed_scaling_factor", kV2Bit | kSigmoidBits, "moe_router_topk_scaling_factor",
     [](SavedArgs& args, const ConfigRow& row) -> Value {
       return float_word(args.number(row.argument).value_or(1.0));
     }},
    {"swiglu_limit", kGptOssBit, "activation_func_clamp_value", as_float},
});

std::string print_config(SavedArgs& args, const TrainedFamily& fit) {
  std::string text = fmt::format("{{\n  \"architectures\": [\n    \"{}\"\n  ],\n  \"model_type\": \"{}\"",
                                 fit.model_class, fit.model_type);
  for (const ConfigRow& row : kRows) {
    if ((row.families & fit.bit) == 0) continue;
    if (const Value value = row.value(args, row)) text += fmt::format(",\n  \"{}\": {}", row.key, *value);
  }
  return text + "\n}\n";
}

TrainedConfig none(std::string why, std::vector<std::string> options) {
  return {{}, std::move(why), std::move(options)};
}

constexpr const char* kTypeOption = "--to";
constexpr const char* kFileOption = "--from-config";

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

bool has_vocabulary(const std::string& args) {
  constexpr std::size_t kDepth = 8;
  const JsonDocument document(args, kDepth);
  return !document.fault() && document.root().find<i64>("vocab_size").has_value();
}

TrainedConfig make_trained_config(const std::string& args_text, const Inventory& tensors,
                                  const std::string& model_type) {
  SavedArgs args(args_text, tensors);
  if (!args.is_object() || args.tensor(kEmbeddingKey) == nullptr)
    return none(
        "there is no config.json that says what model this is, and the names of the tensors are not those of a "
        "GPTModel whose saved arguments would; --from-config FILE names one",
        {kFileOption});
  const u32 traits = traits_of(args);
  const std::vector<const TrainedFamily*> fits = fitting_families(traits, model_type);
  if (!args.faults.empty()) return none("of the saved arguments, " + joined(args.faults), {kFileOption});
  if (fits.empty()) return none(why_none_fits(traits, model_type), {kFileOption});
  if (fits.size() > 1) {
    std::vector<std::string> types;
    types.reserve(fits.size());
    for (const TrainedFamily* fit : fits) types.push_back(fmt::format("--to hf:{}", fit->model_type));
    return none(fmt::format("the saved arguments fit models of {} types and do not say which one this is: {}",
                            fits.size(), joined(types)),
                {kTypeOption});
  }
  std::string text = print_config(args, *fits.front());
  if (!args.missing.empty())
    return none(fmt::format("the saved arguments do not say {}, so that --from-config FILE has to name a config.json",
                            joined(args.missing)),
                {kFileOption});
  if (!args.faults.empty()) return none("of the saved arguments, " + joined(args.faults), {kFileOption});
  return {std::move(text), {}, {}};
}

}  // namespace glu_ckpt
