#pragma once
/// The formulas of encoders for one cell and one weight, on bits: constexpr, so that the CPU's loops and the kernels
/// have the same ones. No product here is part of a sum, so that no compiler has two roundings to make one of.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "core/mxfp8_bits.hpp"
#include "glu_ckpt/ops/decode_codes.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The formula by which a program makes the scale of a cell from the greatest magnitude of its weights
/// (cell_scale() has them).
enum class ScaleRule : std::uint8_t {
  /// a / 448 in F32, a of 1e-12 at least.
  Slime,
  /// a / 448 in F32, a of 1e-4 at least; the same as a power of two.
  DeepGemm,
  DeepGemmPower,
  /// The inverse of 448 / a; the same as a power of two.
  Transformers,
  TransformersPower,
  /// a / 448 in the dtype of the weights; ModelOpt's may be 0, the other's not.
  CompressedTensors,
  ModelOpt,
  /// Powers of two for 32 weights: the least one from a / greatest code on; torchao's default, which may be less; by
  /// the rounded upper bits of a.
  PowerUp,
  PowerFloor,
  PowerRounded,
  DeepGemmFp4,
  /// E4M3 beside a second scale of the matrix.
  Nvfp4ModelOpt,
  Nvfp4CompressedTensors,
  /// a / 7.5 in the dtype of the weights.
  Int4,
};
inline constexpr std::size_t kScaleRules = 14;

/// The meaning of a scale byte of 0 to the program: 2^-127, 2^-126, or that all codes are 0.
enum class LeastPower : std::uint8_t { AsSaid, NextOne, Zero };
/// The code that a number in the middle between two of FP4 gets.
enum class Ties : std::uint8_t { Even, Away, Zero };
/// The weights whose FP4 code has a sign.
enum class Signs : std::uint8_t { Kept, Negative, NotPositive, NegativeCodes };

/// All that decides about the bits of a cell but its weights and its second scale.
struct CellRule {
  Codes codes = Codes::E4m3;
  ScaleRule rule = ScaleRule::Slime;
  /// A weight is divided by the cell's factor, or multiplied.
  bool divides = false;
  /// Weights are BF16, or else F32; the quotient is rounded to BF16 before it gets its code.
  bool bf16 = true;
  bool rounds = false;
  LeastPower least = LeastPower::AsSaid;
  Ties ties = Ties::Even;
  Signs signs = Signs::Kept;
};

/// The scale of a cell: the bits that are stored, and the number that weights are multiplied with, or divided by.
struct CellScale {
  u32 stored = 0;
  float factor = 1;
};

/// A lesser weight cannot decode to infinity: its code stands for at most half as much again.
inline constexpr float kLeastWatched = 0x1p126F;

namespace encode_bits {

constexpr u32 kSign = 0x8000'0000;
constexpr float kMaxE4m3 = 448;
constexpr float kMaxFp4 = 6;

/// Values are compared without branches, so that a compiler takes many at a time.
[[gnu::always_inline]] constexpr u32 choose_bits(bool condition, u32 then, u32 other) {
  const u32 mask = condition ? ~u32{0} : 0;
  return (then & mask) | (other & ~mask);
}

/// To bf16 and back, to nearest even; `bits` are of no NaN.
[[gnu::always_inline]] constexpr u32 through_bf16(u32 bits) { return (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff'0000; }

/// E4M3 of a finite number, to nearest even; 448 where it is more.
[[gnu::always_inline]] constexpr u32 e4m3_of(u32 bits) {
  const u32 magnitude = bits & ~kSign;
  const u32 bounded = choose_bits(magnitude > 0x43e0'0000, 0x43e0'0000, magnitude);
  const u32 normal = ((bounded + 0x7'ffff + (bounded >> 20 & 1)) >> 20) - (120U << 3);
  // Beside 2^14 a float has the steps of subnormal codes, 2^-9.
  const u32 subnormal = std::bit_cast<u32>(std::bit_cast<float>(bounded) + 0x1p14F) - std::bit_cast<u32>(0x1p14F);
  return choose_bits(bounded < 0x3c80'0000, subnormal, normal) | (bits >> 24 & 0x80);
}

/// The value of a code without a sign.
[[gnu::always_inline]] constexpr float value_of_e4m3(u32 code) {
  const u32 subnormal = std::bit_cast<u32>(static_cast<float>(static_cast<int>(code)) * 0x1p-9F);
  return std::bit_cast<float>(choose_bits(code < 8, subnormal, (code + (120U << 3)) << 20));
}

/// The least bits of a magnitude from which on it has the code 1, 2, ... of FP4, and what becomes of signs.
struct Fp4Steps {
  std::array<u32, 7> least{};
  /// The bits that are left of the sign of a zero, those that it gets, and those that are left where the code is 0.
  u32 zero_keeps = 8;
  u32 zero_gets = 0;
  u32 code_zero_keeps = 8;
};

constexpr Fp4Steps fp4_steps(const CellRule& rule) {
  constexpr float kMiddles[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5};
  Fp4Steps steps;
  for (std::size_t i = 0; i < steps.least.size(); ++i) {
    // The code above the middle is i + 1, and even where i is odd.
    const bool up = rule.ties == Ties::Away || (rule.ties == Ties::Even && i % 2 == 1);
    steps.least[i] = std::bit_cast<u32>(kMiddles[i]) + (up ? 0 : 1);
  }
  if (rule.signs != Signs::Kept) steps.zero_keeps = 0;
  if (rule.signs == Signs::NotPositive) steps.zero_gets = 8;
  if (rule.signs == Signs::NegativeCodes) steps.code_zero_keeps = 0;
  return steps;
}

[[gnu::always_inline]] constexpr u32 fp4_of(u32 bits, const Fp4Steps& steps) {
  const u32 magnitude = bits & ~kSign;
  u32 code = 0;
  for (std::size_t i = 0; i < 7; ++i) code += magnitude >= steps.least[i] ? 1 : 0;
  const u32 sign = bits >> 28 & 8;
  const u32 of_zero = (sign & steps.zero_keeps) | steps.zero_gets;
  const u32 kept = choose_bits(magnitude == 0, of_zero, sign);
  return code | choose_bits(code == 0, kept & steps.code_zero_keeps, kept);
}

/// rint() of a number, from -8 to 7, and 8 more.
[[gnu::always_inline]] constexpr u32 int4_of(u32 bits) {
  const float value = std::bit_cast<float>(bits);
  const float least = value < -8.0F ? -8.0F : value;
  const float bounded = least > 7.0F ? 7.0F : least;
  // Beside 1.5 * 2^23 a float has steps of 1.
  return (std::bit_cast<u32>(bounded + 0x1.8p23F) - std::bit_cast<u32>(0x1.8p23F) + 8) & 15;
}

/// The code of a weight that was multiplied, or divided, by its cell's factor.
template <Codes kCodes>
[[gnu::always_inline]] constexpr u32 code_of(u32 bits, const Fp4Steps& steps) {
  if constexpr (kCodes == Codes::E4m3)
    return e4m3_of(bits);
  else if constexpr (kCodes == Codes::E2m1)
    return fp4_of(bits, steps);
  else
    return int4_of(bits);
}

/// The exponent byte of the least power of two that is `value` or more.
[[gnu::always_inline]] constexpr u32 power_up(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  return (bits >> 23) + ((bits & 0x7f'ffff) != 0 ? 1 : 0);
}

[[gnu::always_inline]] constexpr float power(u32 byte) { return std::bit_cast<float>(e8m0_value_bits(byte)); }

[[gnu::always_inline]] constexpr float at_least(float value, float least) { return value < least ? least : value; }

[[gnu::always_inline]] constexpr u32 from_1_to_254(u32 byte) { return byte < 1 ? 1 : byte > 254 ? 254 : byte; }

/// Rounded to the dtype of the weights.
[[gnu::always_inline]] constexpr float rounded(const CellRule& rule, float value) {
  return rule.bf16 ? std::bit_cast<float>(through_bf16(std::bit_cast<u32>(value))) : value;
}

/// Returns the stored bits and the factor of a scale that is stored in the dtype of the weights.
[[gnu::always_inline]] constexpr CellScale own_scale(const CellRule& rule, float scale) {
  const u32 bits = std::bit_cast<u32>(scale);
  return {rule.bf16 ? bits >> 16 : bits, scale};
}

/// In the place of a scale of 0 compressed-tensors puts the difference of 1 and the next number of the dtype.
[[gnu::always_inline]] constexpr float not_zero(const CellRule& rule, float scale) {
  return scale == 0 ? (rule.bf16 ? 0x1p-7F : 0x1p-23F) : scale;
}

[[gnu::always_inline]] constexpr CellScale power_scale(const CellRule& rule, u32 byte) {
  if (byte == 0 && rule.least == LeastPower::Zero) return {byte, 0};
  return {byte, power(byte == 0 && rule.least == LeastPower::NextOne ? 253 : 254 - byte)};
}

/// The scale of a cell whose greatest magnitude, a finite one, is `greatest`; `second` is the second scale.
[[gnu::always_inline]] constexpr CellScale cell_scale(const CellRule& rule, float greatest, float second) {
  const float most = rule.codes == Codes::E2m1 ? kMaxFp4 : kMaxE4m3;
  switch (rule.rule) {
    case ScaleRule::Slime: {
      const float scale = at_least(greatest, rounded(rule, 1e-12F)) / kMaxE4m3;
      return {std::bit_cast<u32>(scale), scale};
    }
    case ScaleRule::DeepGemm: {
      const float scale = at_least(greatest, 1e-4F) / kMaxE4m3;
      return {std::bit_cast<u32>(scale), 1 / scale};
    }
    case ScaleRule::DeepGemmPower: {
      const u32 byte = from_1_to_254(power_up(at_least(greatest, 1e-4F) / kMaxE4m3));
      return {std::bit_cast<u32>(power(byte)), power(254 - byte)};
    }
    case ScaleRule::Transformers:
    case ScaleRule::TransformersPower: {
      const float inverse = greatest > 0 ? kMaxE4m3 * (1 / greatest) : 1;
      const float scale = 1 / inverse;
      if (rule.rule == ScaleRule::Transformers) return {std::bit_cast<u32>(scale), inverse};
      const u32 byte = power_up(at_least(scale, 0x1p-126F));
      return {byte, power(254 - byte)};
    }
    case ScaleRule::CompressedTensors: return own_scale(rule, not_zero(rule, rounded(rule, greatest / kMaxE4m3)));
    case ScaleRule::ModelOpt: return own_scale(rule, rounded(rule, greatest / kMaxE4m3));
    case ScaleRule::PowerUp: return power_scale(rule, power_up(greatest / most));
    case ScaleRule::PowerFloor:
    case ScaleRule::PowerRounded: {
      // The exponent of the greatest code: 448 is 1.75 * 2^8, and 6 is 1.5 * 2^2. The rounded one is taken from the
      // sixteen bits of BF16, and goes up from 1.75 on.
      const u32 bits = std::bit_cast<u32>(greatest);
      const u32 top = rule.codes == Codes::E2m1 ? 2 : 8;
      const u32 exponent = rule.rule == ScaleRule::PowerFloor ? bits >> 23 : ((bits >> 16) + 32) >> 7;
      const u32 byte = exponent < top ? 0 : exponent - top;
      return power_scale(rule, byte > 254 ? 254 : byte);
    }
    case ScaleRule::DeepGemmFp4: return power_scale(rule, from_1_to_254(power_up(at_least(greatest, 1e-4F) / most)));
    case ScaleRule::Nvfp4ModelOpt: {
      const float whole = greatest / (kMaxFp4 * second);
      const u32 least = std::bit_cast<u32>(at_least(whole, 0x1p-9F));
      const u32 code = e4m3_of(choose_bits(whole == 0, std::bit_cast<u32>(1.0F), least));
      return {code, value_of_e4m3(code) * second};
    }
    case ScaleRule::Nvfp4CompressedTensors: {
      constexpr u32 kEighth = 0x20;
      const u32 code = e4m3_of(std::bit_cast<u32>(second * rounded(rule, greatest / kMaxFp4)));
      const u32 not_zero_code = choose_bits(code == 0, kEighth, code);
      return {not_zero_code, value_of_e4m3(not_zero_code) / second};
    }
    case ScaleRule::Int4: return own_scale(rule, not_zero(rule, rounded(rule, greatest / 7.5F)));
  }
  return {};
}

}  // namespace encode_bits
}  // namespace glu_ckpt
