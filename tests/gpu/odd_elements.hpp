#pragma once
/// Elements of any dtype, among them NaNs, infinities, subnormals and zeros of both signs.

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

using Bytes = std::vector<std::byte>;

inline i64 element_bytes(Dtype dtype) { return dtype_bits(dtype) / 8; }

/// Elements whose upper bytes are often all ones or zeros: large exponents, small ones, and everything between.
inline Bytes random_bytes(i64 count, Dtype dtype, std::mt19937_64& random) {
  Bytes bytes;
  for (i64 i = 0; i < count; ++i) {
    u64 bits = random();
    const u64 kind = random() % 8;
    const int width = dtype_bits(dtype);
    const u64 top = ((u64{1} << (width > 16 ? 12 : 6)) - 1) << (width - (width > 16 ? 12 : 6));
    if (kind == 0) bits |= top;
    if (kind == 1) bits &= ~top;
    if (kind == 2) bits = 0;
    if (kind == 3) bits = top & ~(u64{1} << (width - 1));
    const auto* const first = reinterpret_cast<const std::byte*>(&bits);
    bytes.insert(bytes.end(), first, first + element_bytes(dtype));
  }
  return bytes;
}

/// `a` with one element in `every` replaced by other bits, or by the same with its last or first bit flipped.
inline Bytes altered(const Bytes& a, Dtype dtype, u64 every, std::mt19937_64& random) {
  Bytes b = a;
  const auto size = static_cast<std::size_t>(element_bytes(dtype));
  for (std::size_t at = 0; at < b.size(); at += size) {
    if (random() % every != 0) continue;
    switch (random() % 3) {
      case 0: b[at] ^= std::byte{1}; break;
      case 1: b[at + size - 1] ^= std::byte{0x80}; break;
      default: {
        const Bytes other = random_bytes(1, dtype, random);
        std::copy(other.begin(), other.end(), b.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
  }
  return b;
}

}  // namespace glu_ckpt
