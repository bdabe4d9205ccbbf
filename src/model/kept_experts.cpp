#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>

#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parse_number.hpp"
#include "io/file.hpp"
#include "model/part_config.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxListBytes = i64{64} << 20;
constexpr std::size_t kMaxListDepth = 16;
/// More experts than any layer has, so that a range cannot fill the memory.
constexpr i64 kMaxExperts = i64{1} << 20;

/// The words of pruners for what is left.
constexpr auto kKeptWords = std::to_array<std::string_view>(
    {"retained_experts", "retained_expert_indices", "retained_expert_indicies", "retained", "kept_experts",
     "keep_experts", "experts_to_keep", "kept", "keep", "experts"});
constexpr auto kPrunedWords = std::to_array<std::string_view>(
    {"pruned_experts", "experts_to_prune", "dropped_experts", "experts_to_drop", "removed_experts", "pruned"});

/// "0-3,9"; none where it is no such list, and so a path.
std::optional<std::vector<i64>> parse_ranges(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789,-") != text.npos) return std::nullopt;
  std::vector<i64> experts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    const std::size_t dash = one.find('-');
    const auto first = parse_number<i64>(one.substr(0, dash));
    const auto last = dash == one.npos ? first : parse_number<i64>(one.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= kMaxExperts)
      fail(ErrorCode::Usage, {}, "--keep-experts {}: '{}' is no range of experts, such as 0-7", text, one);
    for (i64 expert = *first; expert <= *last; ++expert) experts.push_back(expert);
    begin = end + 1;
  }
  return experts;
}

/// The label of the layer that a key of a list names: "3", "layer_3", "model.layers.3.mlp.experts", "mtp.0".
std::optional<std::string> label_of(std::string_view key, i64 layers) {
  const auto number_at = [&](std::size_t at) {
    std::size_t end = at;
    while (end < key.size() && key[end] >= '0' && key[end] <= '9') ++end;
    return parse_number<i64>(key.substr(at, end - at));
  };
  std::optional<i64> layer = parse_number<i64>(key);
  const bool is_mtp = key.starts_with("mtp.") || key.find(".mtp.") != key.npos;
  for (const std::string_view word : {"layers.", "layer_", "layer.", "layer", "mtp."})
    if (const std::size_t at = key.find(word); !layer && at != key.npos) layer = number_at(at + word.size());
  if (!layer) return std::nullopt;
  if (is_mtp) return fmt::format("mtp.{}", *layer);
  return *layer < layers ? fmt::format("{}", *layer) : fmt::format("mtp.{}", *layer - layers);
}

/// Reads the file of a pruner.
class ListReader {
 public:
  ListReader(const std::string& path, const std::vector<const ExpertBlock*>& blocks, i64 layers,
             const std::set<std::string>& left_out)
      : path_(path), blocks_(blocks), layers_(layers), left_out_(left_out) {}

  KeptExperts read() {
    const std::string text = read_small_file(path_, kMaxListBytes, ErrorCode::Usage);
    const JsonDocument document(text, kMaxListDepth);
    if (document.fault()) refuse(document.fault()->text());
    read(document.root());
    return std::move(lists_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    fail(ErrorCode::Usage, {path_, {}},
         "{}: {}; --keep-experts reads a list of experts, a list of lists, or an object with a list for each layer: "
         "{{\"0\": [0, 1], \"1\": [0, 5]}}",
         path_, why);
  }

  void read(const JsonValue& value) {
    if (value.kind() == JsonKind::Array) return read_array(value);
    if (value.kind() != JsonKind::Object) refuse("it holds neither a list nor an object");
    if (const auto inner = kept_in(value)) return read(*inner);
    for (const JsonMember member : value.members()) {
      const auto label = label_of(member.key, layers_);
      if (!label) refuse(fmt::format("its key '{}' names no layer", member.key));
      put(std::string(member.key), *label, member.value);
    }
  }

  /// Returns the value that an object has under a word for kept experts.
  std::optional<JsonValue> kept_in(const JsonValue& object) const {
    std::optional<JsonValue> kept;
    std::string_view first;
    for (const std::string_view word : kKeptWords)
      if (const auto found = object.find(word)) {
        if (kept) refuse(fmt::format("it has two lists, '{}' and '{}'; take one out", first, word));
        kept = found;
        first = word;
      }
    if (kept) return kept;
    for (const std::string_view word : kPrunedWords)
      if (object.find(word))
        refuse(fmt::format("'{}' lists experts that are taken out, not those that are kept", word));
    return std::nullopt;
  }

  void read_array(const JsonValue& list) {
    bool has_lists = false;
    for (const JsonValue item : list.items())
      has_lists = has_lists || item.kind() == JsonKind::Array || item.kind() == JsonKind::Object;
    if (!has_lists) {
      const std::vector<i64> experts = numbers(list);
      for (const ExpertBlock* block : blocks_) lists_[layer_label(*block)] = experts;
      return;
    }
    const bool counts_all = counts_all_layers(list);
    std::vector<std::string> labels;
    for (const ExpertBlock* block : blocks_)
      if (list.size() == blocks_.size() || !left_out_.contains(layer_label(*block)))
        labels.push_back(layer_label(*block));
    if (!counts_all && list.size() != labels.size())
      refuse(fmt::format("it has {} lists, and the model {} layers, of which {} have experts", list.size(), layers_,
                         blocks_.size()));
    std::size_t index = 0;
    for (const JsonValue item : list.items()) {
      const std::string label = counts_all ? *label_of(std::to_string(index), layers_) : labels[index];
      // A dense layer has an empty list, or none.
      if (!is_empty(item)) put(std::to_string(index), label, item);
      ++index;
    }
  }

  static bool is_empty(const JsonValue& item) {
    return item.kind() == JsonKind::Null || (item.kind() == JsonKind::Array && item.size() == 0);
  }

  bool has_experts(const std::string& label) const {
    return std::ranges::any_of(blocks_, [&](const ExpertBlock* block) { return layer_label(*block) == label; });
  }

  /// Returns whether a list of lists has one for each layer. Otherwise it leaves layers without experts out.
  bool counts_all_layers(const JsonValue& list) const {
    if (static_cast<i64>(list.size()) < layers_) return false;
    std::size_t index = 0;
    for (const JsonValue item : list.items())
      if (!has_experts(*label_of(std::to_string(index++), layers_)) && !is_empty(item)) return false;
    return true;
  }

  void put(const std::string& key, const std::string& label, const JsonValue& value) {
    const std::optional<JsonValue> inner = value.kind() == JsonKind::Object ? kept_in(value) : std::optional(value);
    if (!inner || inner->kind() != JsonKind::Array) refuse(fmt::format("layer {} has no list of experts", key));
    if (!has_experts(label))
      fail(ErrorCode::LayerMissing, {path_, {}}, "{}: it lists experts of layer {}, which has none", path_, key);
    if (!lists_.emplace(label, numbers(*inner)).second) refuse(fmt::format("layer {} has two lists", key));
  }

  std::vector<i64> numbers(const JsonValue& list) const {
    std::vector<i64> experts;
    for (const JsonValue item : list.items()) {
      const auto expert = item.get<i64>();
      if (!expert) refuse("a list of experts holds something that is no number");
      experts.push_back(*expert);
    }
    return experts;
  }

  const std::string& path_;
  const std::vector<const ExpertBlock*>& blocks_;
  i64 layers_;
  const std::set<std::string>& left_out_;
  KeptExperts lists_;
};

void check_list(const std::string& said, const ExpertBlock& block, const std::vector<i64>& experts) {
  const std::string label = layer_label(block);
  std::set<i64> seen;
  if (experts.empty()) fail(ErrorCode::Usage, {}, "--keep-experts {}: no expert of layer {} is left", said, label);
  for (const i64 expert : experts) {
    if (expert < 0 || expert >= block.num_experts)
      fail(ErrorCode::ExpertMissing, {}, "--keep-experts {}: expert {} of layer {}: it has experts 0 to {}", said,
           expert, label, block.num_experts - 1);
    if (!seen.insert(expert).second)
      fail(ErrorCode::Usage, {}, "--keep-experts {}: expert {} of layer {} is there twice", said, expert, label);
  }
}

}  // namespace

KeptExperts read_kept_experts(const std::string& text, const std::vector<const ExpertBlock*>& blocks, i64 layers,
                              const std::set<std::string>& left_out) {
  KeptExperts kept;
  if (const auto everywhere = parse_ranges(text))
    for (const ExpertBlock* block : blocks) kept[layer_label(*block)] = *everywhere;
  else
    kept = ListReader(text, blocks, layers, left_out).read();
  for (const std::string& label : left_out) kept.erase(label);
  for (const ExpertBlock* block : blocks) {
    if (left_out.contains(layer_label(*block))) continue;
    const auto found = kept.find(layer_label(*block));
    if (found == kept.end())
      fail(ErrorCode::LayerMissing, {text, {}}, "{}: it has no list for layer {}, which has {} experts{}", text,
           layer_label(*block), block->num_experts,
           block->stack.starts_with("mtp") ? "; --drop mtp leaves that layer out" : "");
    check_list(text, *block, found->second);
    const auto& [label, first] = *kept.begin();
    if (found->second.size() != first.size())
      fail(
          ErrorCode::NotSupported, {text, {}},
          "{}: layer {} keeps {} experts and layer {} {}: config.json has one number for all layers, so each must keep "
          "as many",
          text, label, first.size(), found->first, found->second.size());
  }
  return kept;
}

std::string expert_list_text(const std::vector<i64>& experts) {
  std::string text;
  for (std::size_t i = 0; i < experts.size();) {
    std::size_t end = i + 1;
    while (end < experts.size() && experts[end] == experts[end - 1] + 1) ++end;
    text += fmt::format("{}{}", i == 0 ? "" : ",", experts[i]);
    if (end > i + 1) text += fmt::format("-{}", experts[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace glu_ckpt
