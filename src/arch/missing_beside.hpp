#pragma once
/// Names the tensors that a multimodal model lacks beside its language model.

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// Adds flaws to the model where tensors of what sees, hears or talks are not there and most of the others of the part
/// are, or where some have other shapes than config.json says. A part that is named otherwise has none, nor a model
/// from which all are left out.
void find_missing_beside(const Inventory& named, const ModelHints& hints, Recognition& model);

}  // namespace glu_ckpt
