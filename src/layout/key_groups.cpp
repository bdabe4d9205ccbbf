#include "layout/key_groups.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "layout/scale_grid.hpp"

namespace glu_ckpt {
namespace {

/// Far beyond any model; an absurd axis must not make as many blocks.
constexpr i64 kMaxStackedLayers = 100'000;

}  // namespace

const KeyPattern* KeyGroup::pattern_of(const Naming& naming) const {
  for (const KeyPattern* pattern : patterns)
    if (pattern->naming == &naming) return pattern;
  return nullptr;
}

KeyGroups::KeyGroups(const Inventory& inventory, const std::vector<std::size_t>& skipped) : inventory_(inventory) {
  keys_.resize(inventory_.tensors.size());
  GroupIds ids;
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i)
    if (!std::ranges::binary_search(skipped, i)) add_key(i, ids);
  // Readings that turned out wrong.
  std::erase_if(groups_, [](const KeyGroup& group) { return group.tensors.empty(); });
}

void KeyGroups::add_key(std::size_t index, GroupIds& ids) {
  const std::string_view name = tensor(index).name;
  ModelKey& key = keys_[index];
  const bool known = !is_foreign_scale(tensor(index));
  for (const StateKey& reading : read_state_key(name)) {
    key = {reading, skeletonize(reading.model_key)};
    if (KeyGroup& group = groups_[group_of(key, known, ids)]; !group.patterns.empty())
      return group.tensors.push_back(index);
  }
  key = {{{}, {}, name, {}, is_optimizer_tensor(name) ? std::string_view() : "model"}, skeletonize(name)};
  groups_[group_of(key, known, ids)].tensors.push_back(index);
}

bool KeyGroups::is_foreign_scale(const TensorRef& ref) {
  constexpr std::string_view kSuffix = "_scale";
  const std::string_view name = ref.name;
  if (!name.ends_with(kSuffix)) return false;
  if (by_name_.empty())
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) by_name_.emplace(tensor(i).name, i);
  const auto weight = by_name_.find(name.substr(0, name.size() - kSuffix.size()));
  return weight == by_name_.end() || !is_mx_scale(tensor(weight->second), ref);
}

std::size_t KeyGroups::group_of(const ModelKey& key, bool known, GroupIds& ids) {
  const StateKey& reading = key.reading;
  std::string id = fmt::format("{} {} {} {} {}{}{}", known, reading.before.size(), reading.after.size(), reading.state,
                               reading.before, key.skeleton.text, reading.after);
  const auto [it, added] = ids.try_emplace(std::move(id), groups_.size());
  // What is an optimizer's, but no state of an expert, ends like an expert's key by chance.
  if (added)
    groups_.push_back(
        {reading.state.empty() || !known ? std::vector<const KeyPattern*>() : match_patterns(key.skeleton), {}});
  return it->second;
}

const TensorRef* KeyGroups::any_explained() const {
  for (const KeyGroup& group : groups_)
    if (!group.patterns.empty()) return &tensor(group.tensors.front());
  return nullptr;
}

const TensorRef* KeyGroups::first_unexplained(const Naming& naming) const {
  for (const KeyGroup& group : groups_)
    if (!group.patterns.empty() && group.pattern_of(naming) == nullptr) return &tensor(group.tensors.front());
  return nullptr;
}

std::map<BlockId, BlockDraft> KeyGroups::drafts(const Naming& naming, std::optional<i64> num_hidden_layers) const {
  std::map<BlockId, BlockDraft> found;
  for (const KeyGroup& group : groups_) {
    const KeyPattern* pattern = group.pattern_of(naming);
    if (pattern == nullptr) continue;
    for (const std::size_t index : group.tensors) add_to_drafts(found, *pattern, index, num_hidden_layers);
  }
  return found;
}

std::string KeyGroups::stack_fault(const std::map<BlockId, BlockDraft>& drafts, const ExpertBlock& block,
                                   const KeyParts& key, const TensorRef& ref) {
  if (ref.shape.size() < 2 || ref.shape[0] < 1 || ref.shape[0] > kMaxStackedLayers)
    return fmt::format("a leading axis of 1 to {} layers", kMaxStackedLayers);
  const auto other = drafts.find({block.state, block.scope, key.stack, 0, block.set});
  if (other == drafts.end()) return {};
  const i64 layers = other->second.block.stacked_layers;
  return layers == 0 || layers == ref.shape[0] ? "" : fmt::format("{} layers as others under '{}'", layers, key.prefix);
}

void KeyGroups::add_to_drafts(std::map<BlockId, BlockDraft>& drafts, const KeyPattern& pattern, std::size_t index,
                              std::optional<i64> num_hidden_layers) const {
  const TensorRef& ref = tensor(index);
  const StateKey& reading = keys_[index].reading;
  const KeyParts key = parse_key(reading.model_key, keys_[index].skeleton, pattern);
  ExpertBlock block;
  block.state = reading.state;
  block.scope = std::string(reading.scope) + std::string(key.scope);
  block.key_scope = std::string(reading.before) + std::string(key.scope);
  block.key_prefix = std::string(reading.before) + std::string(key.prefix);
  block.key_suffix = reading.after;
  block.set = pattern.set;
  const auto add_layer = [&](i64 layer) {
    block.stack = key.stack;
    block.layer = layer;
    // The label must not depend on the naming, so every row counts alike.
    if (block.stack == "decoder" && num_hidden_layers && layer >= *num_hidden_layers) {
      block.stack = "mtp";
      block.layer -= *num_hidden_layers;
    }
    add_to_draft(drafts, block, pattern, key.expert, index);
  };
  if (!pattern.stacked_layers) return add_layer(key.layer);
  if (const std::string fault = stack_fault(drafts, block, key, ref); !fault.empty()) {
    // A state of another shape than the weight's is no twin of it, which is not an error yet.
    if (block.is_twin()) return;
    fail(ErrorCode::ExpertShape, {{}, ref.name}, "'{}' has shape {}, expected {}", ref.name, shape_text(ref.shape),
         fault);
  }
  block.stacked_layers = ref.shape[0];
  for (block.layer_slot = 0; block.layer_slot < block.stacked_layers; ++block.layer_slot) add_layer(block.layer_slot);
}

void KeyGroups::add_to_draft(std::map<BlockId, BlockDraft>& drafts, ExpertBlock block, const KeyPattern& pattern,
                             i64 expert, std::size_t index) const {
  const std::string_view name = tensor(index).name;
  const BlockId id{block.state, block.scope, block.stack, block.layer, block.set};
  auto [it, added] = drafts.try_emplace(id);
  if (added)
    it->second.block = block;
  else if (it->second.block.key_prefix != block.key_prefix || it->second.block.key_suffix != block.key_suffix)
    fail(ErrorCode::RedundantKeys, {{}, std::string(name)}, "layer {} is present twice: as '{}...{}' and as '{}'",
         layer_label(block), it->second.block.key_prefix, it->second.block.key_suffix, name);
  PartTensors& part = it->second.parts[{pattern.kind, pattern.experts, pattern.role}];
  part.emplace_back(expert, index);
  if (!pattern.has_expert && part.size() > 1)
    fail(ErrorCode::RedundantKeys, {{}, std::string(name)}, "'{}' and '{}' both are layer {} of stack {}", name,
         tensor(part.front().second).name, block.layer, block.stack);
}

}  // namespace glu_ckpt
