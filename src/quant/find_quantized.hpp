#pragma once
/// Finds quantized weights by keys, dtypes, shapes and quantization_config together.

#include "glu_ckpt/layout.hpp"
#include "quant/quant_config.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// The place that the experts' naming gives each weight, where it is recognized.
WeightAxes weight_axes(const std::vector<ExpertBlock>& blocks);

/// Pure. What is decoded has the `axes` of its naming. Throws ScaleMissing for codes without scales, ScaleOrphan for
/// scales without codes, SizeMismatch where scales fit no grid of their weight, QuantConfig where the configuration
/// contradicts the tensors, NotSupported for formats that no rule here decodes.
Quantization find_quantized(const Inventory& inventory, const QuantConfig& config, const WeightAxes& axes = {});

}  // namespace glu_ckpt
