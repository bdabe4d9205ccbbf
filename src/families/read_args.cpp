/// From the arguments that Megatron-LM saved to config.json.

#include <algorithm>
#include <cmath>

#include "core/checked_math.hpp"
#include "families/arg_steps.hpp"
#include "families/yarn_scale.hpp"

namespace glu_ckpt {
namespace {

std::string flag_word(bool value) { return value ? "true" : "false"; }

JsonWord json_of(const ArgRow& row) { return row.json.empty() ? std::nullopt : JsonWord(std::string(row.json)); }

bool any(const std::vector<bool>& flags) { return std::ranges::find(flags, true) != flags.end(); }

/// Notes that no model of the family has this value; `needed` is what all have.
void note_strange(SavedArgs& args, std::string_view name, std::string_view needed) {
  const std::string word = args.word(name);
  args.strange.push_back(word.empty() ? fmt::format("no {} instead of {}", name, needed)
                                      : fmt::format("{} {} instead of {}", name, word, needed));
}

i64 shared_width_of(SavedArgs& args, const ArgRow& row) {
  const i64 width = args.integer(row.argument).value_or(0);
  if (width == 0) note_strange(args, row.argument, "more than 0");
  return width;
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

/// `usual` is what Megatron builds models with in versions that have no argument for the number.
std::string yarn_number(const SavedArgs& args, std::string_view key, std::initializer_list<std::string_view> names,
                        double usual) {
  double value = usual;
  for (const std::string_view name : names)
    if (const auto said = args.number(name)) value = *said;
  return fmt::format(",\n    \"{}\": {}", key, float_text(value));
}

/// A hybrid model knows the order of tokens by its mixers.
bool is_without_positions(const SavedArgs& args) {
  return args.text("position_embedding_type") == "none" && !args.text("hybrid_layer_pattern").empty();
}

}  // namespace

std::string python_word(const JsonValue& value) {
  switch (value.kind()) {
    case JsonKind::Null: return "None";
    case JsonKind::Object: return "{...}";
    case JsonKind::Array: {
      std::string text;
      for (const JsonValue item : value.items()) text += (text.empty() ? "" : ", ") + python_word(item);
      return "[" + text + "]";
    }
    default: break;
  }
  if (const auto flag = value.get<bool>()) return *flag ? "True" : "False";
  if (const auto integer = value.get<i64>()) return fmt::format("{}", *integer);
  if (const auto number = value.get<double>()) return fmt::format("{}", *number);
  return std::string(value.get<std::string_view>().value_or(""));
}

JsonWord always(SavedArgs& args, const ArgRow& row) {
  if (args.word(row.argument) != row.value) note_strange(args, row.argument, row.value);
  return json_of(row);
}

JsonWord only(SavedArgs& args, const ArgRow& row) {
  const std::string word = args.word(row.argument);
  if (!word.empty() && word != row.value) note_strange(args, row.argument, row.value);
  return json_of(row);
}

JsonWord indexer_epsilon(SavedArgs& args, const ArgRow& row) {
  if (const auto epsilon = args.indexer_epsilon(); epsilon && *epsilon != std::stod(std::string(row.value)))
    args.strange.push_back(fmt::format("{} {}{} instead of {}", row.argument, float_text(*epsilon),
                                       args.number(row.argument) ? "" : " (that of the other norms)", row.value));
  return std::nullopt;
}

JsonWord constant(SavedArgs&, const ArgRow& row) { return json_of(row); }

JsonWord as_factor(SavedArgs& args, const ArgRow& row) { return float_text(args.number(row.argument).value_or(1.0)); }

/// Megatron-Core chooses one expert before the softmax alone.
JsonWord softmax_not_first(SavedArgs& args, const ArgRow& row) {
  if (args.integer("moe_router_topk").value_or(0) > 1 && args.flag(row.argument))
    note_strange(args, row.argument, "False");
  return json_of(row);
}

/// The second is the field that newer versions make arguments of.
JsonWord zero_centred(SavedArgs& args, const ArgRow& row) {
  if (!args.flag(row.argument) && !args.flag("layernorm_zero_centered_gamma")) note_strange(args, row.argument, "True");
  return std::nullopt;
}

/// The norms of q and k, each for one head.
JsonWord head_norms(SavedArgs& args, const ArgRow& row) {
  constexpr std::string_view kNorm = ".self_attention.q_layernorm.weight";
  const auto head = args.integer("kv_channels");
  for (const TensorRef& tensor : args.tensors().tensors)
    if (tensor.name.ends_with(kNorm) && !tensor.shape.empty() && head && tensor.shape.back() != *head) {
      const i64 width = tensor.shape.back();
      if (width == checked_mul(*head, args.integer("num_attention_heads").value_or(0)))
        args.strange.emplace_back("norms of q and k over all heads instead of one");
      else
        args.strange.push_back(
            fmt::format("kv_channels {} instead of {}, which the norms of q and k have", *head, width));
      break;
    }
  return row.field.empty() ? always(args, row) : as_flag(args, row);
}

/// Without a norm of q the tensors do not say how wide it is, and the model is none of these.
JsonWord wide_norms(SavedArgs& args, const ArgRow& row) {
  constexpr std::string_view kHeads = "num_attention_heads", kGroups = "num_query_groups";
  const std::pair<std::string_view, std::string_view> norms[] = {
      {"self_attention.q_layernorm.weight", kHeads},
      {"self_attention.k_layernorm.weight", args.flag("group_query_attention") ? kGroups : kHeads}};
  const i64 head = args.integer("kv_channels").value_or(0);
  for (const auto& [name, count] : norms) {
    const auto& tensors = args.tensors().tensors;
    const auto norm = std::ranges::find_if(tensors, [&, end = name](const TensorRef& tensor) {
      return tensor.name.ends_with(end) && !tensor.shape.empty();
    });
    if (norm == tensors.end())
      args.strange.push_back(fmt::format("no '{}' instead of one over all heads", name));
    else if (norm->shape.back() != checked_mul(args.integer(count).value_or(0), head).value_or(0))
      args.strange.push_back(fmt::format("{} {} of kv_channels {} instead of {} in all, which '{}' has", count,
                                         args.word(count), head, norm->shape.back(), norm->name));
  }
  return always(args, row);
}

JsonWord no_groups(SavedArgs& args, const ArgRow& row) {
  const bool chooses = args.integer("moe_router_group_topk").value_or(0) != 0;
  if (chooses && args.integer(row.argument).value_or(1) > 1) note_strange(args, row.argument, "none");
  return json_of(row);
}

JsonWord no_window(SavedArgs& args, const ArgRow& row) {
  if (args.window()) note_strange(args, row.argument, "none");
  return std::nullopt;
}

JsonWord rope_kind(SavedArgs& args, const ArgRow& row) {
  const std::string kind = args.text(row.argument);
  if (is_without_positions(args)) return std::nullopt;
  if (!kind.empty() && kind != "rope" && kind != "yarn") note_strange(args, row.argument, "rope or yarn");
  // A factor is YaRN's, and without the kind it is not known whether it counts.
  const bool has_factor = args.number("rotary_scaling_factor").value_or(1.0) != 1.0;
  if (kind.empty() && has_factor && !args.flag("multi_latent_attention")) args.ask(row.argument);
  return std::nullopt;
}

JsonWord rope_base(SavedArgs& args, const ArgRow& row) {
  return is_without_positions(args) ? std::nullopt : as_float(args, row);
}

JsonWord only_expert_layers(SavedArgs& args, const ArgRow& row) {
  const std::vector<bool> experts = args.expert_layers();
  if (std::ranges::find(experts, false) != experts.end()) note_strange(args, row.argument, "experts in all layers");
  return std::nullopt;
}

JsonWord shared_width(SavedArgs& args, const ArgRow& row) { return fmt::format("{}", shared_width_of(args, row)); }

/// The shared expert is as wide as a routed one.
JsonWord width_of_all(SavedArgs& args, const ArgRow& row) {
  const i64 routed = args.needed(row.argument);
  const i64 shared = args.integer("moe_shared_expert_intermediate_size").value_or(0);
  if (shared != 0 && shared != routed)
    args.faults.push_back(fmt::format("moe_shared_expert_intermediate_size {} is not {} {}, as {} needs", shared,
                                      row.argument, routed, row.field));
  return fmt::format("{}", routed);
}

JsonWord delta_kinds(SavedArgs& args, const ArgRow& row) {
  const std::vector<bool> delta = args.delta_layers();
  // A list that cannot be read is a fault, and not one without such layers.
  if (!any(delta) && args.faults.empty()) note_strange(args, row.argument, "GatedDeltaNet in some layers");
  if (args.text("experimental_attention_variant") != "gated_delta_net")
    note_strange(args, "experimental_attention_variant", "gated_delta_net");
  return list_of(
      delta, [](std::size_t, bool flag) { return std::string(flag ? "\"linear_attention\"" : "\"full_attention\""); });
}

JsonWord indexer_kinds(SavedArgs& args, const ArgRow&) {
  return list_of(args.indexer_layers(), [](std::size_t, bool own) { return own ? "\"full\"" : "\"shared\""; });
}

JsonWord window_kinds(SavedArgs& args, const ArgRow&) {
  const std::vector<bool> windows =
      args.window() ? args.window_layers() : std::vector<bool>(static_cast<std::size_t>(args.layers()));
  return list_of(windows, [](std::size_t, bool flag) {
    return std::string(flag ? "\"sliding_attention\"" : "\"full_attention\"");
  });
}

JsonWord all_full_attention(SavedArgs& args, const ArgRow&) {
  return list_of(std::vector<bool>(static_cast<std::size_t>(args.layers())),
                 [](std::size_t, bool) { return "\"full_attention\""; });
}

JsonWord all_with_rope(SavedArgs& args, const ArgRow& row) {
  if (any(args.ropeless_layers())) note_strange(args, row.argument, "none");
  if (row.field.empty()) return std::nullopt;
  return list_of(std::vector<bool>(static_cast<std::size_t>(args.layers())), [](std::size_t, bool) { return "1"; });
}

JsonWord as_integer(SavedArgs& args, const ArgRow& row) { return fmt::format("{}", args.needed(row.argument)); }
JsonWord as_float(SavedArgs& args, const ArgRow& row) { return float_text(args.needed_number(row.argument)); }
JsonWord as_flag(SavedArgs& args, const ArgRow& row) { return flag_word(args.flag(row.argument)); }
JsonWord as_opposite(SavedArgs& args, const ArgRow& row) { return flag_word(!args.needed_flag(row.argument)); }
JsonWord as_count(SavedArgs& args, const ArgRow& row) {
  return fmt::format("{}", args.integer(row.argument).value_or(0));
}
JsonWord as_one_or_more(SavedArgs& args, const ArgRow& row) {
  const i64 number = args.integer(row.argument).value_or(1);
  return fmt::format("{}", number == 0 ? 1 : number);
}

/// Megatron-Core chooses among all groups where it is not said how many of them, and stops where there are none to
/// choose from.
JsonWord expert_groups(SavedArgs& args, const ArgRow& row) {
  constexpr std::string_view kChosen = "moe_router_group_topk";
  const i64 groups = args.integer(row.argument).value_or(0), chosen = args.integer(kChosen).value_or(0);
  if (chosen != 0 && groups == 0)
    args.faults.push_back(
        fmt::format("{} is {} without {}, with which Megatron-Core stops", kChosen, chosen, row.argument));
  return fmt::format("{}", chosen == 0 || groups == 0 ? 1 : groups);
}

/// 0.16's name, and that of the field that newer versions make arguments of.
JsonWord epsilon(SavedArgs& args, const ArgRow& row) {
  if (!args.number(row.argument))
    if (const auto value = args.number("layernorm_epsilon")) return float_text(*value);
  return as_float(args, row);
}

/// Each head has its own key without query groups.
JsonWord key_heads(SavedArgs& args, const ArgRow& row) {
  if (!args.flag("group_query_attention")) return fmt::format("{}", args.needed("num_attention_heads"));
  return as_integer(args, row);
}

/// Many runs take their vocabulary from a tokenizer; the rows that are stored are then all that is known.
JsonWord vocabulary(SavedArgs& args, const ArgRow& row) {
  if (const auto words = args.integer(row.argument)) return fmt::format("{}", *words);
  const TensorRef* const embedding = args.tensor(kEmbeddingKey);
  if (embedding != nullptr && embedding->shape.size() == 2) return fmt::format("{}", embedding->shape[0]);
  return as_integer(args, row);
}

JsonWord stored_dtype(SavedArgs& args, const ArgRow&) {
  const TensorRef* norm = args.tensor("decoder.final_layernorm.weight");
  if (norm == nullptr) norm = args.tensor("decoder.final_norm.weight");
  if (norm == nullptr) return std::nullopt;
  switch (norm->dtype) {
    case Dtype::BF16: return "\"bfloat16\"";
    case Dtype::F16: return "\"float16\"";
    case Dtype::F32: return "\"float32\"";
    default: return std::nullopt;
  }
}

JsonWord query_latent(SavedArgs& args, const ArgRow& row) {
  const auto rank = args.integer(row.argument);
  if (rank) return fmt::format("{}", *rank);
  const auto& tensors = args.tensors().tensors;
  const auto latent = std::ranges::find_if(tensors, [](const TensorRef& tensor) {
    return tensor.name.find(".self_attention.linear_q_down_proj.") != tensor.name.npos;
  });
  if (latent != tensors.end())
    args.faults.push_back(fmt::format("{} is None, but '{}' is there", row.argument, latent->name));
  return "null";
}

JsonWord shared_experts(SavedArgs& args, const ArgRow& row) {
  const i64 shared = shared_width_of(args, row), routed = args.needed("moe_ffn_hidden_size");
  if (routed < 1 || shared % routed != 0)
    args.faults.push_back(fmt::format("{} {} is no multiple of moe_ffn_hidden_size {}, as {} needs", row.argument,
                                      shared, routed, row.field));
  return fmt::format("{}", routed < 1 ? 0 : shared / routed);
}

JsonWord shared_experts_if_any(SavedArgs& args, const ArgRow& row) {
  return args.integer(row.argument).value_or(0) == 0 ? JsonWord("0") : shared_experts(args, row);
}

JsonWord first_dense(SavedArgs& args, const ArgRow& row) {
  const std::vector<bool> experts = args.expert_layers();
  const auto first = std::ranges::find(experts, true);
  if (std::find(first, experts.end(), false) != experts.end())
    args.faults.push_back(
        fmt::format("{} has a dense layer behind a MoE layer, which {} cannot say", row.argument, row.field));
  return fmt::format("{}", first - experts.begin());
}

JsonWord layer_kinds(SavedArgs& args, const ArgRow&) {
  return list_of(args.expert_layers(), [](std::size_t, bool experts) { return experts ? "\"sparse\"" : "\"dense\""; });
}
JsonWord dense_layers(SavedArgs& args, const ArgRow&) {
  return list_of(args.expert_layers(),
                 [](std::size_t layer, bool experts) { return experts ? std::string() : fmt::format("{}", layer); });
}
JsonWord expert_layers(SavedArgs& args, const ArgRow&) {
  return list_of(args.expert_layers(),
                 [](std::size_t layer, bool experts) { return experts ? fmt::format("{}", layer) : std::string(); });
}
/// Gives N where each N-th layer has experts; other patterns are in `moe_layers` alone.
JsonWord expert_step(SavedArgs& args, const ArgRow&) {
  const std::vector<bool> experts = args.expert_layers();
  const auto step = static_cast<std::size_t>(std::ranges::find(experts, true) - experts.begin()) + 1;
  for (std::size_t layer = 0; layer < experts.size(); ++layer)
    if (experts[layer] != ((layer + 1) % step == 0)) return std::nullopt;
  return fmt::format("{}", step);
}

/// Megatron-Core counts the tokens to the left of a token, Hugging Face that one as well.
JsonWord window_width(SavedArgs& args, const ArgRow&) {
  const auto window = args.window();
  return window ? fmt::format("{}", *window + 1) : "null";
}

JsonWord window_of_all(SavedArgs& args, const ArgRow& row) {
  const std::vector<bool> windows = args.window_layers();
  if (args.window() && std::ranges::find(windows, false) != windows.end())
    note_strange(args, "window_attn_skip_freq", "a window in all layers");
  return window_width(args, row);
}

/// Neither the arguments nor the tensors are of a model with experts.
JsonWord no_experts(SavedArgs& args, const ArgRow& row) {
  if (args.integer(row.argument).value_or(0) > 0) note_strange(args, row.argument, "none");
  const std::string layers = args.word("moe_layer_freq");
  if (!layers.empty() && layers != "1") note_strange(args, "moe_layer_freq", "1");
  const auto width = args.integer("moe_ffn_hidden_size");
  if (width && width != args.integer("ffn_hidden_size")) note_strange(args, "moe_ffn_hidden_size", "none");
  const auto& tensors = args.tensors().tensors;
  const auto expert = std::ranges::find_if(
      tensors, [](const TensorRef& tensor) { return tensor.name.find(".mlp.experts.") != tensor.name.npos; });
  if (expert != tensors.end()) args.strange.push_back(fmt::format("'{}' instead of no experts", expert->name));
  return std::nullopt;
}

/// Megatron-Core reads rope_scaling_factor and computes with 8 all the same.
JsonWord llama3_scaling(SavedArgs& args, const ArgRow& row) {
  if (!args.flag(row.argument)) return std::nullopt;
  const double factor = args.number("rope_scaling_factor").value_or(kLlama3Factor);
  if (factor != kLlama3Factor)
    args.faults.push_back(fmt::format(
        "rope_scaling_factor is {}, but Megatron-Core's GPTModel computes with {} whatever it says: which of the two "
        "the model was trained with is unknown",
        float_text(factor), float_text(kLlama3Factor)));
  return fmt::format(
      "{{\n    \"rope_type\": \"llama3\",\n    \"factor\": {},\n    \"low_freq_factor\": {},\n"
      "    \"high_freq_factor\": {},\n    \"original_max_position_embeddings\": {}\n  }}",
      float_text(kLlama3Factor), float_text(kLlama3Low), float_text(kLlama3High), kLlama3Positions);
}

JsonWord usual_softmax_scale(SavedArgs& args, const ArgRow& row) {
  return float_text(1.0 / std::sqrt(static_cast<double>(std::max<i64>(1, args.needed(row.argument)))));
}

i64 yarn_length(const SavedArgs& args) {
  constexpr i64 kLength = 4096;
  const bool latent = args.flag("multi_latent_attention");
  const auto own = args.integer("original_max_position_embeddings");
  const auto usual = args.integer("yarn_original_max_position_embeddings");
  return (latent ? own : usual).value_or((latent ? usual : own).value_or(kLength));
}

std::string yarn_object(SavedArgs& args, const ArgRow& row, std::string_view more) {
  const bool latent = args.flag("multi_latent_attention");
  if (const double part = args.number("rotary_percent").value_or(1.0); !latent && part != 1.0)
    args.faults.push_back(fmt::format(
        "rotary_percent is {} beside YaRN, which Megatron-Core takes over whole heads all the same", float_text(part)));
  std::string text = fmt::format("{{\n    \"rope_type\": \"yarn\",\n    \"type\": \"yarn\",\n    \"factor\": {}",
                                 float_text(args.needed_number(row.argument)));
  text += yarn_number(args, "beta_fast", {"beta_fast", "yarn_beta_fast"}, 32);
  text += yarn_number(args, "beta_slow", {"beta_slow", "yarn_beta_slow"}, 1);
  text += fmt::format(",\n    \"original_max_position_embeddings\": {}", yarn_length(args));
  const double all_dim = args.number("mscale_all_dim").value_or(0.0), mscale = args.number("mscale").value_or(1.0);
  // transformers has no such factor where both are 1 and 0.
  if (latent || all_dim != 0.0) {
    text += fmt::format(",\n    \"mscale\": {}", float_text(mscale));
    text += fmt::format(",\n    \"mscale_all_dim\": {}", float_text(all_dim));
  }
  // transformers takes the quotient of both scales only where neither is 0. Else it takes the scale that the factor
  // alone gives, unless attention_factor says another one.
  const double factor = args.needed_number(row.argument);
  const double scale = yarn_scale(factor, mscale) / yarn_scale(factor, all_dim);
  if ((mscale == 0.0 || all_dim == 0.0) && scale != yarn_scale(factor, 1.0))
    text += fmt::format(",\n    \"attention_factor\": {}", float_text(scale));
  if (!latent)
    text += fmt::format(",\n    \"truncate\": {}", flag_word(!args.has("yarn_correction_range_round_to_int") ||
                                                             args.flag("yarn_correction_range_round_to_int")));
  return text + std::string(more) + "\n  }";
}

JsonWord rope_scaling(SavedArgs& args, const ArgRow& row) {
  return args.has_yarn() ? JsonWord(yarn_object(args, row, {})) : json_of(row);
}

i64 rotated_dims(SavedArgs& args) {
  constexpr i64 kMost = 1 << 28;
  const double dims = args.needed_number("rotary_percent") * static_cast<double>(args.needed("kv_channels"));
  return dims >= 0 && dims <= static_cast<double>(kMost) ? static_cast<i64>(dims) : 0;
}

JsonWord as_rotated_dims(SavedArgs& args, const ArgRow& row) {
  const i64 dims = rotated_dims(args);
  const double part = args.needed_number(row.argument);
  if (const i64 head = args.needed("kv_channels"); static_cast<double>(dims) / static_cast<double>(head) != part)
    args.faults.push_back(
        fmt::format("{} is {} of {} dimensions of a head (kv_channels), which {}, a whole number, "
                    "cannot say",
                    row.argument, float_text(part), head, row.field));
  return fmt::format("{}", dims);
}

}  // namespace glu_ckpt
