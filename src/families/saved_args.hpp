#pragma once
/// The arguments that Megatron-LM saved with a checkpoint, and the tensors beside them.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"
#include "families/architecture.hpp"

namespace glu_ckpt {

/// The embedding of a GPTModel that stands alone.
inline constexpr std::string_view kEmbeddingKey = "embedding.word_embeddings.weight";

/// A value as Python prints it.
std::string python_word(const JsonValue& value);

/// The layers that have an indexer of their own: the first `offset` ones, and each `freq`-th behind them.
inline std::vector<bool> layers_with_indexers(i64 layers, i64 freq, i64 offset) {
  std::vector<bool> flags(static_cast<std::size_t>(layers), true);
  for (i64 layer = std::max<i64>(offset, 1); layer < layers; ++layer)
    flags[static_cast<std::size_t>(layer)] = (layer + 1 - std::max<i64>(offset, 1)) % std::max<i64>(freq, 1) == 0;
  return flags;
}

class SavedArgs {
 public:
  SavedArgs(const std::string& args, const Inventory& tensors) : document_(args, kDepth), tensors_(tensors) {}

  bool is_object() const { return !document_.fault() && document_.root().kind() == JsonKind::Object; }
  const Inventory& tensors() const { return tensors_; }
  /// Names of arguments that were asked for and are not there; what no field can say; what no model of the family that
  /// is tried has; fields that models of the family differ in and that no argument says.
  std::vector<std::string> missing;
  mutable std::vector<std::string> faults;
  std::vector<std::string> strange;
  std::vector<std::string> unsaid;

  /// Requires is_object().
  JsonValue root() const { return document_.root(); }
  bool flag(std::string_view name) const { return find<bool>(name, "True or False").value_or(false); }
  std::optional<i64> integer(std::string_view name) const { return find<i64>(name, "a whole number"); }
  std::optional<double> number(std::string_view name) const { return find<double>(name, "a number"); }
  std::string text(std::string_view name) const {
    return std::string(find<std::string_view>(name, "a word").value_or(""));
  }
  /// The value as Python prints it; empty where it was not saved or is None.
  std::string word(std::string_view name) const {
    const auto value = document_.root().find(name);
    return value && value->kind() != JsonKind::Null ? python_word(*value) : std::string();
  }
  bool has(std::string_view name) const { return document_.root().find(name).has_value(); }
  bool is_said(std::string_view name) const {
    const auto value = document_.root().find(name);
    return value && value->kind() != JsonKind::Null;
  }

  i64 needed(std::string_view name) {
    if (!is_said(name)) ask(name);
    return integer(name).value_or(1);
  }
  double needed_number(std::string_view name) {
    if (!is_said(name)) ask(name);
    return number(name).value_or(1);
  }
  bool needed_flag(std::string_view name) {
    if (!is_said(name)) ask(name);
    return flag(name);
  }
  void ask(std::string_view name) {
    if (std::ranges::find(missing, name) == missing.end()) missing.emplace_back(name);
  }

  i64 layers() const { return std::clamp<i64>(integer("num_layers").value_or(0), 0, kMaxLayers); }

  /// Flags of the layers: a list says one for each; of a number N, `of_number(layer, N)`; nothing, `otherwise`.
  template <typename OfNumber>
  std::vector<bool> pattern(std::string_view name, bool otherwise, const OfNumber& of_number) {
    std::vector<bool> flags(static_cast<std::size_t>(layers()), otherwise);
    const auto value = document_.root().find(name);
    if (!value || value->kind() == JsonKind::Null) return flags;
    if (const auto number = value->get<i64>(); number && *number > 0) {
      for (std::size_t layer = 0; layer < flags.size(); ++layer)
        flags[layer] = of_number(static_cast<i64>(layer), *number);
      return flags;
    }
    if (value->kind() != JsonKind::Array) {
      note_fault(fmt::format("{} is {}, where a number above 0 or a list belongs", name, short_word(*value)));
      return flags;
    }
    if (value->size() != flags.size()) {
      note_fault(fmt::format("{} has {} entries for {} layers (num_layers)", name, value->size(),
                             integer("num_layers").value_or(0)));
      return flags;
    }
    std::size_t layer = 0;
    for (const JsonValue item : value->items()) {
      const i64 entry = item.get<bool>() ? i64{*item.get<bool>()} : item.get<i64>().value_or(-1);
      if (entry != 0 && entry != 1)
        note_fault(fmt::format("{} is {} in layer {}, where 0 or 1 belongs", name, short_word(item), layer));
      flags[layer++] = entry == 1;
    }
    return flags;
  }

  std::vector<bool> expert_layers() {
    return pattern("moe_layer_freq", true, [](i64 layer, i64 number) { return layer % number == 0; });
  }
  std::vector<bool> delta_layers() {
    return pattern("linear_attention_freq", false, [](i64 layer, i64 number) { return (layer + 1) % number != 0; });
  }
  std::vector<bool> indexer_layers() const {
    return layers_with_indexers(layers(), integer("dsa_indexer_topk_freq").value_or(1),
                                integer("dsa_indexer_skip_topk_offset").value_or(0));
  }
  std::vector<bool> window_layers() {
    return pattern("window_attn_skip_freq", true, [](i64 layer, i64 number) { return (layer + 1) % number != 0; });
  }
  std::vector<bool> ropeless_layers() {
    return pattern("no_rope_freq", false, [](i64 layer, i64 number) { return (layer + 1) % number == 0; });
  }
  /// Whether heads are turned by YaRN. Latent attention has it unless rope_type says another kind, and then a factor of
  /// 1 changes nothing.
  bool has_yarn() const {
    if (!flag("multi_latent_attention")) return text("position_embedding_type") == "yarn";
    const std::string kind = text("rope_type");
    return kind.empty() ? number("rotary_scaling_factor").value_or(1.0) != 1.0 : kind == "yarn";
  }
  /// That of the indexers' own norm, which is the other norms' where no argument says it.
  std::optional<double> indexer_epsilon() const {
    for (const std::string_view name : {"dsa_indexer_k_norm_epsilon", "norm_epsilon", "layernorm_epsilon"})
      if (const auto epsilon = number(name)) return epsilon;
    return std::nullopt;
  }
  /// Tokens to the left of a token that it sees; none where it sees all, and where there is a window_fault().
  /// Transformer Engine sets the second number of window_size to 0 in causal attention, so that (7, 7) is (7, 0), and
  /// takes a first one of -1 for all tokens (check_set_window_size in
  /// transformer_engine/pytorch/attention/dot_product_attention/utils.py, of 2026-08-22).
  std::optional<i64> window() const {
    const std::vector<i64> numbers = window_numbers();
    return numbers.size() == 2 && numbers[0] >= 0 && window_fault().empty() ? std::optional(numbers[0]) : std::nullopt;
  }
  /// Returns what window_size should be where no causal attention computes with it; empty where one does. Megatron-Core
  /// 0.19.2's own attention (transformer_impl local, get_sliding_window_causal_mask in
  /// megatron/core/transformer/utils.py) takes both numbers as they are, so that (7, 7) sees 7 tokens to come.
  std::string window_fault() const {
    if (!is_said("window_size")) return {};
    const std::vector<i64> numbers = window_numbers();
    if (numbers.size() != 2) return "None or two numbers";
    if (text("transformer_impl") == "local")
      return numbers[0] >= 0 && numbers[1] == 0 ? "" : "a number and 0 (beside transformer_impl local)";
    const bool sees_all = numbers[0] == -1 && (numbers[1] == -1 || numbers[1] == 0);
    return numbers[0] >= 0 || sees_all ? "" : "0 or more tokens to the left, or -1 and -1, with which it sees all";
  }

  const TensorRef* tensor(std::string_view name) const {
    const auto found = std::ranges::find(tensors_.tensors, name, &TensorRef::name);
    return found == tensors_.tensors.end() ? nullptr : &*found;
  }

 private:
  static constexpr std::size_t kDepth = 8;
  /// The entries of the saved window_size that are whole numbers.
  std::vector<i64> window_numbers() const {
    std::vector<i64> numbers;
    const auto value = document_.root().find("window_size");
    if (!value || value->kind() != JsonKind::Array) return numbers;
    for (const JsonValue item : value->items()) {
      if (!item.get<i64>()) return {};
      numbers.push_back(*item.get<i64>());
    }
    return numbers;
  }
  static std::string short_word(const JsonValue& value) {
    constexpr std::size_t kShown = 40;
    return value.kind() == JsonKind::Null ? "None" : python_word(value).substr(0, kShown);
  }

  void note_fault(std::string fault) const {
    if (std::ranges::find(faults, fault) == faults.end()) faults.push_back(std::move(fault));
  }

  /// A value of another type must not pass for an argument that was not saved.
  template <typename Type>
  std::optional<Type> find(std::string_view name, std::string_view type) const {
    const auto value = document_.root().find(name);
    if (!value || value->kind() == JsonKind::Null) return std::nullopt;
    const auto found = value->get<Type>();
    if (!found && value->kind() == JsonKind::String)
      note_fault(fmt::format("{} is the text '{}', where {} belongs", name, short_word(*value), type));
    else if (!found)
      note_fault(fmt::format("{} is {}, where {} belongs", name, short_word(*value), type));
    return found;
  }

  JsonDocument document_;
  const Inventory& tensors_;
};

}  // namespace glu_ckpt
