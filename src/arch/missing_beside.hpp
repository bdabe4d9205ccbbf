#pragma once
/// Names the tensors that a multimodal model lacks beside its language model.

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// Adds a flaw to the model where tensors of what sees or hears are not there and most of the others are. One whose
/// parts are named otherwise, or all left out, has none.
void find_missing_beside(const Inventory& named, const ModelHints& hints, Recognition& model);

}  // namespace glu_ckpt
