#pragma once
/// One tensor for all layers of a model that gets Megatron's names (--stack-layers).

#include <vector>

#include "arch/dense_table.hpp"
#include "plan/expert_outputs.hpp"

namespace glu_ckpt {

/// Joins the drafts of a whole model, "decoder.layers.0.X" to "decoder.layers.47.X", to one tensor "decoder.layers.X"
/// each. `whole` is the naming that the model gets; null where it keeps its own. Throws NoSpelling where no program
/// reads such keys, or the layers are not alike.
void stack_drafts(const Recognition& from, const DenseNaming* whole, std::vector<DraftOutput>& drafts, Plan& plan);

}  // namespace glu_ckpt
