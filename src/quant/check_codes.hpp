#pragma once
/// Refusals of codes by the bytes of the small tensors beside them: stated shapes, zero points, scales of gate and up.

#include "glu_ckpt/checkpoint.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// Throws for what has no numbers: `found.undecodable`; NotSupported where gate and up have unequal scales in one
/// tensor and nothing says in which order it holds their rows (QuantizedTensor::part_rows).
void check_decodable(const Source& source, const Quantization& found);

/// Reads the shapes that compressed-tensors states, and throws SizeMismatch where one is not that of the codes.
void check_stated_shapes(const Source& source, const Quantization& found);

}  // namespace glu_ckpt
