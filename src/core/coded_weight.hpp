#pragma once
/// Checks the arguments of decode_codes() and decode_codes_host().

#include "glu_ckpt/ops/decode_codes.hpp"

namespace glu_ckpt {

/// Returns whether eight codes share a word, and zeros or groups of their own say what they are.
inline bool in_words(const CodedWeight& weight) {
  return weight.codes == Codes::Awq || weight.codes == Codes::Gptq || weight.zeros != nullptr ||
         weight.column_groups != nullptr;
}

/// Returns the number of decoded elements. Throws Usage, naming `call`, where the weight or its destination is none.
i64 check_coded_weight(const char* call, const CodedWeight& weight, Dtype to, const void* out);

}  // namespace glu_ckpt
