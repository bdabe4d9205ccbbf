#pragma once
/// bf16 and fp16 to and from fp32, on bits: constexpr, so that the CPU's loops and the kernels have the same ones.

#include <bit>
#include <cstdint>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

namespace float_bits {

constexpr u32 kF32Infinity = 0x7f80'0000;
constexpr std::uint16_t kBf16Infinity = 0x7f80, kF16Infinity = 0x7c00;
/// The exponent of fp16's subnormals as fp32 counts exponents; the bits by which fp32's mantissa is longer.
constexpr u32 kF16SubnormalExponent = 127 - 14;
constexpr u32 kF16Shift = 13;

/// `value` / 2^shift to nearest, ties to even; 0 < shift < 32.
constexpr u32 shift_rounded(u32 value, u32 shift) {
  const u32 kept = value >> shift;
  const u32 rest = value - (kept << shift);
  const u32 half = u32{1} << (shift - 1);
  return kept + (rest > half || (rest == half && kept % 2 == 1) ? 1 : 0);
}

constexpr float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<u32>(bits) << 16); }

constexpr float from_f16(std::uint16_t bits) {
  constexpr u32 kInfinity = 0x7c00;
  // The exponent's bias is 112 less than that of fp32. Subnormals are subnormal in fp32 too until they are multiplied.
  constexpr float kBias = 0x1p112F;
  const u32 magnitude = bits & u32{0x7fff};
  const u32 sign = (bits & u32{0x8000}) << 16;
  const u32 finite = std::bit_cast<u32>(std::bit_cast<float>(magnitude << 13) * kBias);
  const u32 special = kF32Infinity | (magnitude << 13 & 0x007f'ffff);
  return std::bit_cast<float>(sign | (magnitude >= kInfinity ? special : finite));
}

/// round_to_bf16(), as fp32 again. Without a branch, so that the compiler can take several at a time.
constexpr u32 rounded_to_bf16(u32 bits) {
  constexpr u32 kQuiet = 0x0040'0000;
  // Just less than half of a unit, or half where the kept part is odd: the carry is what rounds to nearest even.
  const u32 rounded = bits + 0x7fff + (bits >> 16 & 1);
  return ((bits & 0x7fff'ffff) > kF32Infinity ? bits | kQuiet : rounded) & 0xffff'0000;
}

}  // namespace float_bits

/// Bits of fp32 to bits of bf16 or fp16. NaN becomes a quiet NaN of its sign with the upper bits of its payload; too
/// large a value becomes infinite.
constexpr std::uint16_t round_to_bf16(std::uint32_t fp32) {
  return static_cast<std::uint16_t>(float_bits::rounded_to_bf16(fp32) >> 16);
}

constexpr std::uint16_t round_to_f16(std::uint32_t fp32) {
  using namespace float_bits;
  constexpr u32 kInfinity = kF16Infinity;
  constexpr u32 kQuiet = 0x0200;
  const u32 sign = fp32 >> 16 & 0x8000;
  const u32 magnitude = fp32 & 0x7fff'ffff;
  const auto signed_bits = [&](u32 bits) { return static_cast<std::uint16_t>(sign | bits); };
  if (magnitude > kF32Infinity) return signed_bits(kInfinity | kQuiet | (magnitude >> kF16Shift & 0x01ff));
  const u32 exponent = magnitude >> 23;
  if (exponent >= kF16SubnormalExponent) {
    // Only the bias of the exponent differs; a carry out of the mantissa lands in the exponent, as it should.
    const u32 rounded = shift_rounded(magnitude - ((kF16SubnormalExponent - 1) << 23), kF16Shift);
    return signed_bits(rounded < kInfinity ? rounded : kInfinity);
  }
  // Subnormal in fp16: so many units of 2^-24. Less than half of the least one is zero.
  const u32 shift = kF16SubnormalExponent - exponent + kF16Shift;
  if (shift > 25) return signed_bits(0);
  return signed_bits(shift_rounded((magnitude & 0x007f'ffff) | 0x0080'0000, shift));
}

}  // namespace glu_ckpt
