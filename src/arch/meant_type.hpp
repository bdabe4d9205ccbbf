#pragma once
/// The family that somebody meant who mistyped a model_type.

#include <string>
#include <string_view>

namespace glu_ckpt {

/// " (config.json's model_type; did you mean 'qwen3_moe'?)"; empty where `model_type` is near to that of no family.
std::string words_of_meant_type(std::string_view model_type);

}  // namespace glu_ckpt
