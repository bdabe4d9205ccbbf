#include "layout/key_groups.hpp"

#include <algorithm>

#include "core/fail.hpp"

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
  GroupFinder finder;
  for (std::size_t i = 0; i < inventory_.tensors.size(); ++i)
    if (!std::ranges::binary_search(skipped, i)) add_key(i, finder);
  // Readings that turned out wrong have no tensors.
  std::erase_if(groups_, [](const KeyGroup& group) { return group.tensors.empty(); });
}

void KeyGroups::add_key(std::size_t index, GroupFinder& finder) {
  const std::string_view name = tensor(index).name;
  for (const StateKey& reading : read_state_key(name))
    if (KeyGroup& group = group_of(reading, finder); !group.patterns.empty()) return group.tensors.push_back(index);
  const StateKey whole{{}, {}, name, {}, is_optimizer_tensor(name) ? std::string_view() : "model"};
  group_of(whole, finder).tensors.push_back(index);
}

KeyGroup& KeyGroups::group_of(const StateKey& reading, GroupFinder& finder) {
  skeletonize(reading.model_key, finder.skeleton);
  finder.id.clear();
  // The state's name has no '/'; the sizes say where the other texts end.
  for (const std::size_t size : {reading.before.size(), reading.after.size()})
    finder.id.append(reinterpret_cast<const char*>(&size), sizeof size);
  for (const std::string_view text :
       {reading.state, std::string_view("/"), reading.before, std::string_view(finder.skeleton.text), reading.after})
    finder.id += text;
  if (const auto found = finder.numbers.find(finder.id); found != finder.numbers.end()) return groups_[found->second];
  finder.numbers.emplace(finder.id, groups_.size());
  // An optimizer's tensor that is no state of an expert ends like an expert's key by chance.
  const bool explained = !reading.state.empty();
  groups_.push_back({reading, explained ? match_patterns(finder.skeleton) : std::vector<const KeyPattern*>(), {}});
  return groups_.back();
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
    if (pattern != nullptr) add_group(found, group, *pattern, num_hidden_layers);
  }
  return found;
}

std::string KeyGroups::stack_fault(const std::map<BlockId, BlockDraft>& drafts, const ExpertBlock& block,
                                   std::string_view stack, const TensorRef& ref) {
  if (ref.shape.size() < 2 || ref.shape[0] < 1 || ref.shape[0] > kMaxStackedLayers)
    return fmt::format("a leading axis of 1 to {} layers", kMaxStackedLayers);
  const auto other = drafts.find({block.state, block.scope, std::string(stack), 0, block.set});
  if (other == drafts.end()) return {};
  const i64 layers = other->second.block.stacked_layers;
  return layers == 0 || layers == ref.shape[0]
             ? ""
             : fmt::format("{} layers as others under '{}'", layers, block.key_prefix);
}

void KeyGroups::add_group(std::map<BlockId, BlockDraft>& drafts, const KeyGroup& group, const KeyPattern& pattern,
                          std::optional<i64> num_hidden_layers) const {
  // Keys of one layer differ in the expert alone, so the layer's block is looked for once.
  std::unordered_map<std::string_view, std::vector<PartDraft>> parts_of_prefix;
  std::string_view last_prefix;
  std::vector<PartDraft>* parts = nullptr;
  for (const std::size_t index : group.tensors) {
    const std::string_view key = group.model_key(tensor(index).name);
    const ExpertPart part = find_expert_part(key, pattern);
    const std::string_view prefix = key.substr(0, part.begin);
    // Each tensor with a leading axis of layers has a shape of its own to check.
    if (parts == nullptr || prefix != last_prefix || pattern.stacked_layers) {
      parts = &parts_of_prefix[prefix];
      if (parts->empty() || pattern.stacked_layers)
        *parts = parts_of(drafts, group, pattern, prefix, index, num_hidden_layers);
      last_prefix = prefix;
    }
    for (const PartDraft& draft : *parts) {
      draft.tensors->emplace_back(part.expert, index);
      if (!pattern.has_expert && draft.tensors->size() > 1)
        fail(ErrorCode::RedundantKeys, {{}, tensor(index).name}, "'{}' and '{}' both are layer {} of stack {}",
             tensor(index).name, tensor(draft.tensors->front().second).name, draft.block->layer, draft.block->stack);
    }
  }
}

std::vector<PartDraft> KeyGroups::parts_of(std::map<BlockId, BlockDraft>& drafts, const KeyGroup& group,
                                           const KeyPattern& pattern, std::string_view prefix, std::size_t index,
                                           std::optional<i64> num_hidden_layers) const {
  const TensorRef& ref = tensor(index);
  const std::string_view model_key = group.model_key(ref.name);
  const KeyParts key = parse_key(model_key, skeletonize(model_key), pattern);
  const StateKey& reading = group.reading;
  ExpertBlock block;
  block.state = reading.state;
  block.scope = std::string(reading.scope) + std::string(key.scope);
  block.key_scope = std::string(reading.before) + std::string(key.scope);
  block.key_prefix = std::string(reading.before) + std::string(prefix);
  block.key_suffix = reading.after;
  block.set = pattern.set;
  std::vector<PartDraft> parts;
  const auto add_layer = [&](i64 layer) {
    block.stack = key.stack;
    block.layer = layer;
    // The label must not depend on the naming, so every row counts alike.
    if (block.stack == "decoder" && num_hidden_layers && layer >= *num_hidden_layers) {
      block.stack = "mtp";
      block.layer -= *num_hidden_layers;
    }
    parts.push_back(part_of(drafts, block, pattern, index));
  };
  if (!pattern.stacked_layers) {
    add_layer(key.layer);
    return parts;
  }
  if (const std::string fault = stack_fault(drafts, block, key.stack, ref); !fault.empty()) {
    // A state of another shape than the weight's is none of its states, which is not an error yet.
    if (block.is_optimizer_state()) return parts;
    fail(ErrorCode::ExpertShape, {{}, ref.name}, "'{}' has shape {}, expected {}", ref.name, shape_text(ref.shape),
         fault);
  }
  block.stacked_layers = ref.shape[0];
  for (block.layer_slot = 0; block.layer_slot < block.stacked_layers; ++block.layer_slot) add_layer(block.layer_slot);
  return parts;
}

PartDraft KeyGroups::part_of(std::map<BlockId, BlockDraft>& drafts, const ExpertBlock& block, const KeyPattern& pattern,
                             std::size_t index) const {
  const auto [it, added] = drafts.try_emplace({block.state, block.scope, block.stack, block.layer, block.set});
  BlockDraft& draft = it->second;
  if (added)
    draft.block = block;
  else if (draft.block.key_prefix != block.key_prefix || draft.block.key_suffix != block.key_suffix)
    fail(ErrorCode::RedundantKeys, {{}, tensor(index).name}, "layer {} is present twice: as '{}...{}' and as '{}'",
         layer_label(block), draft.block.key_prefix, draft.block.key_suffix, tensor(index).name);
  std::string& word = draft.block.scale_word;
  if (!word.empty() && !pattern.scale_word.empty() && word != pattern.scale_word)
    fail(ErrorCode::RedundantKeys, {{}, tensor(index).name},
         "layer {}: some of its scales are called '{}', and '{}' is called otherwise", layer_label(block), word,
         tensor(index).name);
  if (word.empty()) word = pattern.scale_word;
  return {&draft.block, &draft.parts[{pattern.kind, pattern.experts, pattern.role}]};
}

}  // namespace glu_ckpt
