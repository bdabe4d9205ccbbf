#pragma once
/// The quantization_config of models that are encoded here, as the programs of the encoders write it.

#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "quant/encode_row.hpp"

namespace glu_ckpt {

/// The object. `left` are the modules with weights of two axes that stay as they are, `others` those with other
/// weights, such as norms, and embeddings.
std::string quantization_object(const Encoder& encoder, const std::vector<std::string>& left,
                                const std::vector<std::string>& others);

/// The text of a config.json with this `quantization_config` for the one that it has.
std::string with_quantization(std::string_view config, std::string_view object);

/// Takes files that say how weights are quantized out of those that an output gets; they have decided about its
/// tensors.
void take_out_quantization_files(CheckpointInfo& info);

}  // namespace glu_ckpt
