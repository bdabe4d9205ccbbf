#include "core/round_float.hpp"

#include <bit>
#include <cstring>
#include <limits>

namespace glu_ckpt {
namespace {

constexpr u32 kF32Infinity = 0x7f80'0000;
/// Of fp16, the exponent of its subnormals as fp32 counts exponents, and the bits by which fp32's mantissa is longer.
constexpr u32 kF16SubnormalExponent = 127 - 14;
constexpr u32 kF16Shift = 13;

/// `value` / 2^shift to nearest, ties to even; 0 < shift < 32.
u32 shift_rounded(u32 value, u32 shift) {
  const u32 kept = value >> shift;
  const u32 rest = value - (kept << shift);
  const u32 half = u32{1} << (shift - 1);
  return kept + (rest > half || (rest == half && kept % 2 == 1) ? 1 : 0);
}

/// One element's bits, little-endian.
template <typename Bits>
Bits element(std::span<const std::byte> bytes, std::size_t index) {
  Bits bits = 0;
  std::memcpy(&bits, bytes.data() + index * sizeof(Bits), sizeof(Bits));
  return bits;
}

/// Equal bits, or both NaN: above `infinity`, the sign aside.
template <typename Bits>
bool same_value(Bits a, Bits b, Bits infinity) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() / 2;
  return a == b || ((a & kMagnitude) > infinity && (b & kMagnitude) > infinity);
}

template <typename Wide, typename Narrow, typename Round>
bool all_round(std::span<const std::byte> wide, std::span<const std::byte> narrow, Narrow infinity, Round round) {
  if (wide.size() / sizeof(Wide) != narrow.size() / sizeof(Narrow)) return false;
  for (std::size_t i = 0; i < wide.size() / sizeof(Wide); ++i)
    if (!same_value<Narrow>(round(element<Wide>(wide, i)), element<Narrow>(narrow, i), infinity)) return false;
  return true;
}

}  // namespace

static_assert(std::endian::native == std::endian::little);

std::uint16_t round_to_bf16(std::uint32_t fp32) {
  constexpr u32 kQuiet = 0x0040;
  if ((fp32 & 0x7fff'ffff) > kF32Infinity) return static_cast<std::uint16_t>(fp32 >> 16 | kQuiet);
  return static_cast<std::uint16_t>(shift_rounded(fp32, 16));
}

std::uint16_t round_to_f16(std::uint32_t fp32) {
  constexpr u32 kInfinity = 0x7c00;
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

bool can_round(Dtype from, Dtype to) {
  const bool narrow = to == Dtype::BF16 || to == Dtype::F16;
  return (from == Dtype::F32 && narrow) || (from == to && (narrow || to == Dtype::F32 || to == Dtype::F64));
}

bool rounds_to(std::span<const std::byte> wide, Dtype from, std::span<const std::byte> narrow, Dtype to) {
  using u16 = std::uint16_t;
  constexpr u16 kBf16Infinity = 0x7f80;
  constexpr u16 kF16Infinity = 0x7c00;
  constexpr u64 kF64Infinity = u64{0x7ff} << 52;
  const auto as_is = [](auto bits) { return bits; };
  if (to == Dtype::F64) return all_round<u64, u64>(wide, narrow, kF64Infinity, as_is);
  if (to == Dtype::F32) return all_round<u32, u32>(wide, narrow, kF32Infinity, as_is);
  if (from == to) return all_round<u16, u16>(wide, narrow, to == Dtype::BF16 ? kBf16Infinity : kF16Infinity, as_is);
  if (to == Dtype::BF16) return all_round<u32, u16>(wide, narrow, kBf16Infinity, round_to_bf16);
  return all_round<u32, u16>(wide, narrow, kF16Infinity, round_to_f16);
}

}  // namespace glu_ckpt
