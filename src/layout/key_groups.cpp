#include "layout/key_groups.hpp"

#include <unordered_map>

#include "core/fail.hpp"

namespace glu_ckpt {

const KeyPattern* KeyGroup::pattern_of(const Naming& naming) const {
  for (const KeyPattern* pattern : patterns)
    if (pattern->naming == &naming) return pattern;
  return nullptr;
}

KeyGroups::KeyGroups(const Inventory& inventory) : inventory_(inventory) {
  std::unordered_map<std::string, std::size_t> ids;
  skeletons_.reserve(inventory_.tensors.size());
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i) {
    skeletons_.push_back(skeletonize(tensor(i).name));
    const auto [it, added] = ids.try_emplace(skeletons_.back().text, groups_.size());
    if (added) groups_.push_back({match_patterns(skeletons_.back()), {}});
    groups_[it->second].tensors.push_back(i);
  }
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
    for (const std::size_t index : group.tensors) add_to_draft(found, *pattern, index, num_hidden_layers);
  }
  return found;
}

void KeyGroups::add_to_draft(std::map<BlockId, BlockDraft>& drafts, const KeyPattern& pattern, std::size_t index,
                             std::optional<i64> num_hidden_layers) const {
  const std::string_view name = tensor(index).name;
  const KeyParts key = parse_key(name, skeletons_[index], pattern);
  ExpertBlock block;
  block.scope = key.scope;
  block.stack = pattern.stack->stack;
  block.layer = key.layer;
  block.set = pattern.set;
  // The label must not depend on the naming, so every row counts alike.
  if (block.stack == "decoder" && num_hidden_layers && block.layer >= *num_hidden_layers) {
    block.stack = "mtp";
    block.layer -= *num_hidden_layers;
  }
  const BlockId id{block.scope, block.stack, block.layer, block.set};
  auto [it, added] = drafts.try_emplace(id);
  block.key_prefix = fmt::format("{}{}{}{}", key.scope, pattern.stack->before, key.layer, pattern.stack->after);
  if (added)
    it->second.block = std::move(block);
  else if (it->second.block.key_prefix != block.key_prefix)
    fail(ErrorCode::RedundantKeys, {{}, std::string(name)}, "layer {} is present twice: as '{}...' and as '{}'",
         layer_label(block), it->second.block.key_prefix, name);
  PartTensors& part = it->second.parts[{pattern.kind, pattern.experts, pattern.role}];
  part.emplace_back(key.expert, index);
  if (!pattern.has_expert && part.size() > 1)
    fail(ErrorCode::RedundantKeys, {{}, std::string(name)}, "'{}' and '{}' both are layer {} of stack {}", name,
         tensor(part.front().second).name, key.layer, pattern.stack->stack);
}

}  // namespace glu_ckpt
