#pragma once
/// Finds words of quantization_config by which a program multiplies the inputs or outputs of modules when it runs, or
/// adds low-rank parts to their weights, so that the stored weights alone are not the model's.

#include <string>

#include "core/json.hpp"

namespace glu_ckpt {

/// Takes quantization_config. Returns the name of the word and what it says, as in "transform_config has a transform
/// 'R4' at location 'input'"; empty where there is none, where words are empty, and where all transforms are inside
/// the stored weights (locations that begin with `weight_`).
std::string run_time_words(const JsonValue& config);

}  // namespace glu_ckpt
