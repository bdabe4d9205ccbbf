#pragma once
/// The optimizer's twins of one layer's experts: tensors of the weights' shapes, of some parts or of all.

#include <vector>

#include "layout/expert_block.hpp"

namespace glu_ckpt {

struct TwinParts {
  /// Parts with the shapes of their weights.
  BlockParts twins;
  /// Parts of one element: a step, a scale.
  BlockParts scalars;
  /// Tensors of other shapes, such as slices that were folded to be stored.
  std::vector<std::size_t> misfits;
};

/// Sorts the parts of a twin of `model`. Throws ExpertShape where some experts' tensors of one part fit and
/// others do not.
TwinParts sort_twin_parts(const ExpertBlock& block, const BlockParts& parts, const BlockShape& model,
                          const Inventory& inventory);

/// Like check_block(), for parts of a twin; sizes come from `model`. Throws the expert errors.
BlockShape check_twin(ExpertBlock block, BlockParts parts, const BlockShape& model, const Inventory& inventory);

}  // namespace glu_ckpt
