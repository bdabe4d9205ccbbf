#pragma once
/// Codes of four bits, eight in a word, with zeros or groups of their own, on the device.

#include "glu_ckpt/ops/decode_codes.hpp"

namespace glu_ckpt {

/// decode_codes() for weights that are in_words(). The weight is checked, and has elements.
void decode_coded_words(const CodedWeight& weight, Dtype to, void* out, GpuStream stream);

}  // namespace glu_ckpt
