#pragma once
/// Keys of a part of a model: of one expert-parallel rank's experts, or of one pipeline stage's layers.

#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Returns the key of an expert's tensor with its numbers moved by as many experts and layers, where its program counts
/// through the whole model: `model.layers.12.mlp.experts.4.up_proj.weight` by -4 and -12 is that of expert 0 of layer
/// 0. Keys of programs that count within one process (Naming::counts_in_process), and all others, stay. Throws Usage
/// where a number would become negative.
std::string moved_numbers(std::string_view key, i64 experts, i64 layers);

}  // namespace glu_ckpt
