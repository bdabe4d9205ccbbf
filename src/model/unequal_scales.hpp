#pragma once
/// Scales of whole matrices that differ between the gate and up of an expert: exact as they are stored, and a trap for
/// programs that multiply both at once and keep one scale.

#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// Returns a sentence for each kind of such scales that are not equal, with how many experts and the first one. Reads
/// the scales of at most 4096 experts, spread over the model.
std::vector<std::string> unequal_scales(const Source& source, const std::vector<ExpertBlock>& blocks);

}  // namespace glu_ckpt
