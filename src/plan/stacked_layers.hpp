#pragma once
/// Decides whether the layers of a stack share their tensors, with a leading axis that counts them. They do in
/// `megatron-dist` where all layers of the main stack are alike and the keys beside the experts have such an axis, too,
/// or no layer numbers at all. A layout that is kept keeps its keys.

#include <vector>

#include "plan/target_block.hpp"

namespace glu_ckpt {

/// Decides for all blocks together and completes their targets: stacked_layers and key_prefix. `targets` are those
/// of `from.blocks`.
void stack_targets(const Inventory& inventory, const Recognition& from, std::vector<BlockTarget>& targets,
                   const DenseNaming* whole, const FormerModel& former, Scope scope);

}  // namespace glu_ckpt
