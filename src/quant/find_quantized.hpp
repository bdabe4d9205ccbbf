#pragma once
/// Finds quantized weights by keys, dtypes, shapes and quantization_config together.

#include "glu_ckpt/tensor.hpp"
#include "quant/quant_config.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// Pure. Throws ScaleMissing for codes without scales, ScaleOrphan for scales without codes, SizeMismatch where scales
/// fit no grid of their weight, QuantConfig where the configuration contradicts the tensors, NotSupported for formats
/// that no rule here decodes.
Quantization find_quantized(const Inventory& inventory, const QuantConfig& config);

}  // namespace glu_ckpt
