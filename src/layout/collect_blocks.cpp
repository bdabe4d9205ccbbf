#include <algorithm>
#include <unordered_map>
#include <vector>

#include "core/checked_math.hpp"
#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "layout/expert_block.hpp"
#include "layout/optimizer_names.hpp"
#include "layout/recognize_steps.hpp"

namespace glu_ckpt {
namespace {

struct StateParts {
  /// Parts with the shapes of their weights.
  BlockParts states;
  /// Parts of one element: a step, a scale.
  BlockParts scalars;
  /// Tensors of other shapes, such as slices that were folded to be stored.
  std::vector<std::size_t> misfits;
};

using PartKey = BlockParts::key_type;

std::string label(const ExpertBlock& block) {
  return fmt::format("{} of layer {} {} experts", block.state, layer_label(block), to_string(block.set));
}

bool is_scalar(const TensorRef& ref) { return checked_product(ref.shape).value_or(0) == 1; }

/// Returns whether a tensor is shaped like the weight or bias of a part of `model`.
bool is_state_shape(const ExpertBlock& block, const TensorRef& ref, const PartKey& key, i64 expert,
                    const BlockShape& model, const Inventory& inventory) {
  const auto [kind, experts, role] = key;
  const std::span<const i64> shape = layer_shape(block, ref);
  const bool both_stacked = block.stacked_layers > 0 && model.block.stacked_layers > 0;
  if (both_stacked && block.stacked_layers != model.block.stacked_layers) return false;
  if (const auto same = model.parts.find(key); same != model.parts.end()) {
    const TensorRef& weight = inventory.tensors[same->second.front().second];
    const bool ragged = model.block.intermediate_size < 0;
    if (!ragged && std::ranges::equal(shape, layer_shape(model.block, weight))) return true;
  }
  if (is_scale(kind) || expert >= model.block.num_experts) return false;
  const i64 f = model.intermediate[static_cast<std::size_t>(expert)];
  const bool doubled = role == Role::GateUp && model.block.glu.kind != Glu::Kind::None;
  std::vector<i64> expected{role == Role::Down ? model.block.hidden_size : doubled ? 2 * f : f};
  if (kind == TensorKind::Weight) expected.push_back(role == Role::Down ? f : model.block.hidden_size);
  if (kind == TensorKind::Weight && model.block.axes == Axes::InOut) std::swap(expected[0], expected[1]);
  if (block.set == ExpertSet::Routed && experts == Experts::Grouped)
    expected.insert(expected.begin(), model.block.num_experts);
  return std::ranges::equal(shape, expected);
}

void check_experts(const ExpertBlock& block, const PartKey& key, const PartTensors& tensors,
                   const Inventory& inventory) {
  const TensorRef& first = inventory.tensors[tensors.front().second];
  for (const auto& [expert, index] : tensors)
    if (inventory.tensors[index].dtype != first.dtype)
      fail(ErrorCode::ExpertDtype, {{}, inventory.tensors[index].name}, "{}: '{}' is {}, but '{}' is {}", label(block),
           inventory.tensors[index].name, dtype_name(inventory.tensors[index].dtype), first.name,
           dtype_name(first.dtype));
  if (block.set == ExpertSet::Shared || std::get<Experts>(key) == Experts::Grouped) return;
  i64 present = 0;
  for (const auto& [expert, index] : tensors) present += expert == present ? 1 : 0;
  const auto stored = static_cast<i64>(tensors.size());
  if (present == block.num_experts && stored == present) return;
  const bool missing = present < block.num_experts;
  fail(missing ? ErrorCode::ExpertMissing : ErrorCode::ExpertExtra, {{}, first.name},
       "{}: the weights have {} experts, but expert {} is {} beside '{}'", label(block), block.num_experts,
       missing ? present : tensors.back().first, missing ? "missing" : "one too many", first.name);
}

/// One part of each kind and role, indexed or grouped; FC1 whole, or both gate and up.
void check_parts(const ExpertBlock& block, const BlockParts& parts, const Inventory& inventory) {
  const auto find = [&](TensorKind kind, Role role) -> const PartTensors* {
    for (const Experts experts : {Experts::Indexed, Experts::Grouped})
      if (const auto found = parts.find({kind, experts, role}); found != parts.end()) return &found->second;
    return nullptr;
  };
  for (const auto& [key, tensors] : parts) {
    const auto [kind, experts, role] = key;
    const std::string& name = inventory.tensors[tensors.front().second].name;
    if (experts == Experts::Indexed && parts.contains({kind, Experts::Grouped, role}))
      fail(ErrorCode::RedundantKeys, {{}, name}, "{}: '{}' is there both grouped and indexed", label(block), name);
    if (role != Role::Gate && role != Role::Up) continue;
    if (find(kind, Role::GateUp) != nullptr)
      fail(ErrorCode::RedundantKeys, {{}, name}, "{}: FC1 is there both fused and as '{}'", label(block), name);
    const Role other = role == Role::Gate ? Role::Up : Role::Gate;
    if (block.glu.kind != Glu::Kind::None && find(kind, other) == nullptr)
      fail(ErrorCode::PartMissing, {{}, name}, "{}: '{}' is there, but nothing for {}", label(block), name,
           to_string(other));
  }
}

/// Sorts the parts of a state of `model`. Throws ExpertShape where some experts' tensors of one part fit and
/// others do not.
StateParts sort_state_parts(const ExpertBlock& block, const BlockParts& parts, const BlockShape& model,
                            const Inventory& inventory) {
  StateParts sorted;
  for (const auto& [key, tensors] : parts) {
    const PartKey& part = key;
    const auto fits = [&](const auto& tensor) {
      return is_state_shape(block, inventory.tensors[tensor.second], part, tensor.first, model, inventory);
    };
    const auto misfit = std::ranges::find_if_not(tensors, fits);
    const bool scalar =
        std::ranges::all_of(tensors, [&](const auto& tensor) { return is_scalar(inventory.tensors[tensor.second]); });
    if (misfit == tensors.end()) {
      sorted.states.emplace(key, tensors);
    } else if (scalar) {
      sorted.scalars.emplace(key, tensors);
    } else if (std::ranges::none_of(tensors, fits)) {
      for (const auto& [expert, index] : tensors) sorted.misfits.push_back(index);
    } else {
      const TensorRef& ref = inventory.tensors[misfit->second];
      fail(ErrorCode::ExpertShape, {{}, ref.name}, "{}: '{}' has shape {}, which is not the weight's, while others are",
           label(block), ref.name, shape_text(ref.shape));
    }
  }
  return sorted;
}

/// Like check_block(), for parts of a state; sizes come from `model`. Throws the expert errors.
BlockShape check_state(ExpertBlock block, BlockParts parts, const BlockShape& model, const Inventory& inventory) {
  block.num_experts = model.block.num_experts;
  block.hidden_size = model.block.hidden_size;
  block.intermediate_size = model.block.intermediate_size;
  block.axes = model.block.axes;
  block.experts = model.block.experts;
  block.bias_experts = model.block.bias_experts;
  if (model.block.glu.kind == Glu::Kind::None) block.glu = model.block.glu;
  for (auto& [key, tensors] : parts) {
    std::sort(tensors.begin(), tensors.end());
    const auto [kind, experts, role] = key;
    (kind == TensorKind::Bias ? block.bias_experts : block.experts) = experts;
    block.fused |= role == Role::GateUp;
    check_experts(block, key, tensors, inventory);
  }
  check_parts(block, parts, inventory);
  return {std::move(block), std::move(parts), {}, model.scale_rows, model.intermediate};
}

/// F of the routed experts, by which the odd one of an FC1 and an FC2 is told.
std::optional<i64> said_width(const std::string& config) {
  constexpr int kDepth = 64;
  const JsonDocument document(config, kDepth);
  if (config.empty() || document.fault() || document.root().kind() != JsonKind::Object) return std::nullopt;
  const JsonValue language = find_text_config(document.root()).value_or(document.root());
  const auto width = language.find<i64>("moe_intermediate_size");
  return width ? width : language.find<i64>("intermediate_size");
}

class BlockCollector {
 public:
  BlockCollector(const KeyGroups& keys, const Naming& naming, const ModelHints& hints, i64 scale_rows)
      : keys_(keys),
        inventory_(keys.inventory()),
        naming_(naming),
        num_experts_(hints.num_experts),
        expert_width_(said_width(hints.config)),
        scale_rows_(scale_rows) {
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
    BlockContext context{&inventory_,  &naming_,     shard,      counted ? router : std::nullopt,
                         std::nullopt, std::nullopt, scale_rows_};
    if (counted && !shard && draft.block.set == ExpertSet::Routed && draft.block.stack == "decoder") {
      context.num_experts = num_experts_;
      context.expert_width = expert_width_;
    }
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
  std::optional<i64> expert_width_;
  i64 scale_rows_;
  CollectedBlocks found_;
  std::map<std::tuple<std::string, i64, ExpertSet>, std::vector<std::size_t>> weights_by_layer_;
  /// States of one element a tensor.
  std::vector<std::pair<ExpertBlock, BlockParts>> scalars_;
  /// The tensors whose names end like a router's.
  std::unordered_map<std::string_view, std::size_t> routers_;
};

}  // namespace

CollectedBlocks collect_blocks(const KeyGroups& keys, const Naming& naming, const ModelHints& hints,
                               std::optional<i64> num_hidden_layers, i64 scale_rows) {
  return BlockCollector(keys, naming, hints, scale_rows).run(num_hidden_layers);
}

}  // namespace glu_ckpt
