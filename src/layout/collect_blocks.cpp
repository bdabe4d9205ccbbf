#include "layout/collect_blocks.hpp"

#include <algorithm>
#include <unordered_map>

#include "core/checked_math.hpp"
#include "layout/optimizer_block.hpp"
#include "layout/optimizer_names.hpp"

namespace glu_ckpt {
namespace {

class BlockCollector {
 public:
  BlockCollector(const KeyGroups& keys, const Naming& naming, std::optional<i64> num_experts, i64 scale_rows)
      : keys_(keys), inventory_(keys.inventory()), naming_(naming), num_experts_(num_experts), scale_rows_(scale_rows) {
    for (std::size_t i = 0; i < inventory_.tensors.size(); ++i)
      if (tensor(i).name.ends_with(naming_.router)) routers_.emplace(tensor(i).name, i);
  }

  CollectedBlocks run(std::optional<i64> num_hidden_layers) {
    auto drafts = keys_.drafts(naming_, num_hidden_layers);
    for (auto& [id, draft] : drafts)
      if (!draft.block.is_optimizer_state()) add_block(std::move(draft), true);
    found_.num_weight_blocks = found_.shapes.size();
    for (std::size_t i = 0; i < found_.num_weight_blocks; ++i) {
      const ExpertBlock& block = found_.shapes[i].block;
      weights_by_layer_[{block.stack, block.layer, block.set}].push_back(i);
    }
    for (auto& [id, draft] : drafts)
      if (draft.block.is_optimizer_state()) add_state(std::move(draft));
    for (const auto& [block, scalars] : scalars_) bind_scalars(block, scalars);
    // A tensor that holds several layers is listed once.
    std::ranges::sort(found_.misfits);
    found_.misfits.erase(std::unique(found_.misfits.begin(), found_.misfits.end()), found_.misfits.end());
    return std::move(found_);
  }

 private:
  const TensorRef& tensor(std::size_t index) const { return inventory_.tensors[index]; }

  void add_block(BlockDraft draft, bool counted) {
    const std::optional<std::pair<i64, i64>> router = router_shape(draft.block);
    const bool shard = !shard_folder(draft.block.scope).empty();
    BlockContext context{&inventory_, &naming_, shard, counted ? router : std::nullopt, std::nullopt, scale_rows_};
    if (counted && !shard && draft.block.set == ExpertSet::Routed && draft.block.stack == "decoder")
      context.num_experts = num_experts_;
    found_.shapes.push_back(check_block(std::move(draft.block), std::move(draft.parts), context));
  }

  /// The optimizer's states are cut like the weights they belong to. Alone in a checkpoint they must be
  /// complete; there a state of single elements says nothing about experts.
  void add_state(BlockDraft draft) {
    if (const std::optional<std::size_t> weights = weights_of(draft.block)) {
      StateParts sorted = sort_state_parts(draft.block, draft.parts, found_.shapes[*weights], inventory_);
      found_.misfits.insert(found_.misfits.end(), sorted.misfits.begin(), sorted.misfits.end());
      if (!sorted.scalars.empty()) scalars_.emplace_back(draft.block, std::move(sorted.scalars));
      if (!sorted.states.empty())
        found_.shapes.push_back(
            check_state(std::move(draft.block), std::move(sorted.states), found_.shapes[*weights], inventory_));
      return;
    }
    if (draft.block.stacked_layers > 0 && found_.num_weight_blocks > 0) {
      for (const auto& part : draft.parts) found_.misfits.push_back(part.second.front().second);
      return;
    }
    const bool scalars = std::ranges::all_of(draft.parts, [&](const auto& part) {
      return std::ranges::all_of(
          part.second, [&](const auto& entry) { return checked_product(tensor(entry.second).shape).value_or(0) == 1; });
    });
    if (scalars)
      scalars_.emplace_back(std::move(draft.block), std::move(draft.parts));
    else
      add_block(std::move(draft), false);
  }

  /// The weights of the same layer: under the same scope, or the only ones of the same shard.
  std::optional<std::size_t> weights_of(const ExpertBlock& state) const {
    const auto blocks = weights_by_layer_.find({state.stack, state.layer, state.set});
    if (blocks == weights_by_layer_.end()) return std::nullopt;
    std::optional<std::size_t> found;
    int candidates = 0;
    for (const std::size_t i : blocks->second) {
      const std::string& scope = found_.shapes[i].block.scope;
      if (scope == state.scope) return i;
      if (shard_folder(scope) != shard_folder(state.scope)) continue;
      found = i;
      ++candidates;
    }
    return candidates == 1 ? found : std::nullopt;
  }

  static std::optional<std::size_t> tensor_of(const BlockShape& shape, const BlockParts::key_type& key, i64 expert) {
    const auto part = shape.parts.find(key);
    if (part == shape.parts.end()) return std::nullopt;
    const auto at = std::ranges::find(part->second, expert, &PartTensors::value_type::first);
    return at == part->second.end() ? std::nullopt : std::optional(at->second);
  }

  /// A step of the optimizer belongs to the tensor it is a step of.
  void bind_scalars(const ExpertBlock& block, const BlockParts& scalars) {
    std::vector<const BlockShape*> owners;
    if (const auto weights = weights_of(block)) owners.push_back(&found_.shapes[*weights]);
    // Another state of the same tensor stands in for weights that are not there.
    for (std::size_t i = found_.num_weight_blocks; i < found_.shapes.size() && owners.empty(); ++i) {
      const ExpertBlock& state = found_.shapes[i].block;
      if (std::tie(state.scope, state.stack, state.layer, state.set) ==
          std::tie(block.scope, block.stack, block.layer, block.set))
        owners.push_back(&found_.shapes[i]);
    }
    for (const BlockShape* owner : owners)
      for (const auto& part : scalars)
        for (const auto& entry : part.second)
          if (const auto weight = tensor_of(*owner, part.first, entry.first))
            found_.bound.push_back({entry.second, *weight});
  }

  std::optional<std::pair<i64, i64>> router_shape(const ExpertBlock& block) const {
    const auto found = routers_.find(block.key_prefix + std::string(naming_.router));
    if (found == routers_.end()) return std::nullopt;
    const std::span<const i64> shape = layer_shape(block, tensor(found->second));
    if (shape.size() != 2) return std::nullopt;
    return std::pair{shape[0], shape[1]};
  }

  const KeyGroups& keys_;
  const Inventory& inventory_;
  const Naming& naming_;
  std::optional<i64> num_experts_;
  i64 scale_rows_;
  CollectedBlocks found_;
  std::map<std::tuple<std::string, i64, ExpertSet>, std::vector<std::size_t>> weights_by_layer_;
  /// States of one element a tensor.
  std::vector<std::pair<ExpertBlock, BlockParts>> scalars_;
  /// The tensors whose names end like a router's.
  std::unordered_map<std::string_view, std::size_t> routers_;
};

}  // namespace

CollectedBlocks collect_blocks(const KeyGroups& keys, const Naming& naming, std::optional<i64> num_experts,
                               std::optional<i64> num_hidden_layers, i64 scale_rows) {
  return BlockCollector(keys, naming, num_experts, scale_rows).run(num_hidden_layers);
}

}  // namespace glu_ckpt
