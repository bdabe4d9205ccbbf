#pragma once
/// The rules of MXFP8 for one number, on bits. constexpr, so that kernels use them too.

#include <bit>
#include <cstdint>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

inline constexpr u32 kF32Nan = 0x7fc0'0000;
/// The code of a NaN in either fp8 format.
inline constexpr std::uint8_t kFp8Nan = 0x7f;

/// An fp8 format of one sign bit, then exponent and mantissa.
struct Fp8Format {
  int mantissa_bits;
  int bias;
  /// The largest finite value's code, sign aside.
  u32 max_code;
  /// fp32 nearest to 1 / the largest finite value.
  float inverse_max;
};
inline constexpr Fp8Format kE4m3{3, 7, 0x7e, std::bit_cast<float>(u32{0x3b12'4925})};
inline constexpr Fp8Format kE5m2{2, 15, 0x7b, std::bit_cast<float>(u32{0x3792'4925})};
static_assert(kE4m3.inverse_max == 1.0F / 448 && kE5m2.inverse_max == 1.0F / 57344);

constexpr Fp8Format fp8_format(bool e5m2) { return e5m2 ? kE5m2 : kE4m3; }

constexpr std::uint8_t e8m0_bits(float r) {
  const u32 bits = std::bit_cast<u32>(r);
  const u32 exponent = bits >> 23 & 0xff;
  const u32 mantissa = bits & 0x7f'ffff;
  if (exponent == 0xff) return mantissa != 0 ? 0xff : 0xfe;
  // 2^-127 is itself subnormal in fp32: of the subnormal values, those above it round up to 2^-126.
  const bool up = mantissa > 0 && exponent != 0xfe && (exponent != 0 || mantissa > 0x40'0000);
  return static_cast<std::uint8_t>(exponent + (up ? 1 : 0));
}

/// fp32 bits of 2^(e - 127).
constexpr u32 e8m0_value_bits(u32 e) { return e == 0xff ? kF32Nan : e == 0 ? 0x40'0000 : e << 23; }
/// fp32 bits of 2^(127 - e).
constexpr u32 e8m0_inverse_bits(u32 e) { return e == 0xff ? 0x7fff'ffff : e == 0xfe ? 0x40'0000 : (254 - e) << 23; }

/// fp32 to fp8, to nearest, ties to even; see round_to_fp8().
constexpr std::uint8_t fp8_code(float value, const Fp8Format& format) {
  const u32 bits = std::bit_cast<u32>(value);
  const u32 magnitude = bits & 0x7fff'ffff;
  if (magnitude > 0x7f80'0000) return kFp8Nan;
  const u32 sign = bits >> 24 & 0x80;
  const int exponent = static_cast<int>(magnitude >> 23);
  const int least = 128 - format.bias;
  // Below fp8's normal range one more bit is lost with each power of two; more than 25 leave nothing to round.
  const int lost = 23 - format.mantissa_bits + (exponent < least ? least - exponent : 0);
  if (lost > 25) return static_cast<std::uint8_t>(sign);
  // With its leading bit at `mantissa_bits`, a normal number carries one unit of the exponent field already.
  const u32 mantissa = (magnitude & 0x7f'ffff) | (exponent > 0 ? 0x80'0000 : 0);
  const u32 kept = mantissa >> lost;
  const u32 rest = mantissa - (kept << lost);
  const u32 half = u32{1} << (lost - 1);
  const u32 rounded = kept + (rest > half || (rest == half && kept % 2 == 1) ? 1 : 0);
  const u32 code = rounded + (exponent > least ? static_cast<u32>(exponent - least) << format.mantissa_bits : 0);
  return static_cast<std::uint8_t>(sign | (code < format.max_code ? code : format.max_code));
}

/// The value of a code as fp32, exactly.
constexpr float fp8_decoded(std::uint8_t code, const Fp8Format& format) {
  const u32 magnitude = code & 0x7f;
  if (magnitude > format.max_code) {
    const bool infinite = format.mantissa_bits == 2 && magnitude == 0x7c;
    return std::bit_cast<float>(infinite ? (static_cast<u32>(code) & 0x80) << 24 | 0x7f80'0000 : kF32Nan);
  }
  // Read as fp32, only the exponent's bias is wrong; subnormal codes are subnormal in fp32 until they are multiplied.
  const float unbiased = std::bit_cast<float>(magnitude << (23 - format.mantissa_bits));
  const float bias = std::bit_cast<float>(static_cast<u32>(254 - format.bias) << 23);
  const float value = unbiased * bias;
  return (code & 0x80) != 0 ? -value : value;
}

/// Byte of scale (i, j) among swizzled ones: i counts along the axis without blocks, j blocks; `tiles` of 4 j's in a
/// row.
constexpr i64 mx_swizzled_offset(i64 i, i64 j, i64 tiles) {
  return (i / 128 * tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
}

}  // namespace glu_ckpt
