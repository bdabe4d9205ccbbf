#pragma once
/// How large a model is: what people ask first of a checkpoint.

#include "glu_ckpt/model.hpp"
#include "quant/find_quantized.hpp"

namespace glu_ckpt {

/// `found` is what is quantized in the source; `hints` has its configuration.
ModelSize model_size(const Source& source, const Quantization& found, const ModelHints& hints,
                     const Recognition& model);

}  // namespace glu_ckpt
