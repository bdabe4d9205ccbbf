#pragma once
/// The optimizer's states of one layer's experts: tensors of the weights' shapes, of some parts or of all.

#include <vector>

#include "layout/expert_block.hpp"

namespace glu_ckpt {

struct StateParts {
  /// Parts with the shapes of their weights.
  BlockParts states;
  /// Parts of one element: a step, a scale.
  BlockParts scalars;
  /// Tensors of other shapes, such as slices that were folded to be stored.
  std::vector<std::size_t> misfits;
};

/// Sorts the parts of a state of `model`. Throws ExpertShape where some experts' tensors of one part fit and
/// others do not.
StateParts sort_state_parts(const ExpertBlock& block, const BlockParts& parts, const BlockShape& model,
                            const Inventory& inventory);

/// Like check_block(), for parts of a state; sizes come from `model`. Throws the expert errors.
BlockShape check_state(ExpertBlock block, BlockParts parts, const BlockShape& model, const Inventory& inventory);

}  // namespace glu_ckpt
