#pragma once
/// Scales of whole matrices that differ between the gate and up of an expert: exact as they are stored, and a trap for
/// programs that multiply both at once and keep one scale.

#include <string>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// Returns a sentence for each kind of such scales that are not equal, with how many experts and the first one. Reads
/// the scales of at most 4096 experts, spread over the model.
std::vector<std::string> unequal_scales(const Source& source, const std::vector<ExpertBlock>& blocks);

/// Does the same for gate and up in one tensor whose scales no naming explains: those that are not in `blocks`.
std::vector<std::string> unequal_scales_of_parts(const Source& source, const Quantization& found,
                                                 const std::vector<ExpertBlock>& blocks);

}  // namespace glu_ckpt
