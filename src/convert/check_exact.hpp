#pragma once
/// Refusals of what a plan would lose or contradict.

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// Proves the plan (check_plan), and refuses what moves alone do not show: an order of gate and up that the output's
/// programs read as another one, optimizer state left in the old layout, codes that quantization_config contradicts,
/// and computed or joined tensors of which an element would not come back. Reads small tensors of the source.
void check_exact(const Conversion& conversion, const Plan& plan);

}  // namespace glu_ckpt
