#include "layout/optimizer_block.hpp"

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

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

}  // namespace

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

}  // namespace glu_ckpt
