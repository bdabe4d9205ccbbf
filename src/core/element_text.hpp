#pragma once
/// One element of a tensor as people read it.

#include <span>
#include <string>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The bits of little-endian bytes: "0x3f80".
std::string bits_text(std::span<const std::byte> element);

/// The number that the element is, with as many digits as tell it apart from its neighbours: "1.0078125", "-3", "nan".
/// Empty for what is no number: elements below a byte, and complex ones.
std::string number_text(Dtype dtype, std::span<const std::byte> element);

}  // namespace glu_ckpt
