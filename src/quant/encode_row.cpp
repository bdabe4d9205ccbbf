#include "quant/encode_row.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/mxfp8_bits.hpp"

namespace glu_ckpt {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;

constexpr u32 kSign = 0x8000'0000;
constexpr float kMaxE4m3 = 448;

/// The exponent byte of the least power of two that is `value` or more.
u32 power_up(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  return (bits >> 23) + ((bits & 0x7f'ffff) != 0 ? 1 : 0);
}

float power(u32 byte) { return std::bit_cast<float>(e8m0_value_bits(byte)); }

float inverse_power(u32 byte, LeastPower least) {
  if (byte == 0 && least == LeastPower::Zero) return 0;
  return power(byte == 0 && least == LeastPower::NextOne ? 253 : 254 - byte);
}

/// The difference of 1 and the next number of the dtype, which compressed-tensors puts in place of a scale of 0.
float epsilon_of(Dtype dtype) { return dtype == Dtype::BF16 ? 0x1p-7F : 0x1p-23F; }

float not_zero(float scale, Dtype dtype) { return scale == 0 ? epsilon_of(dtype) : scale; }

u32 bits_as(Dtype dtype, float scale) {
  return dtype == Dtype::BF16 ? std::bit_cast<u32>(scale) >> 16 : std::bit_cast<u32>(scale);
}

/// Values are compared without branches, so that a compiler takes many at a time.
[[gnu::always_inline]] inline u32 choose_bits(bool condition, u32 then, u32 other) {
  const u32 mask = condition ? ~u32{0} : 0;
  return (then & mask) | (other & ~mask);
}

/// To bf16 and back, to nearest even; `bits` are of no NaN.
[[gnu::always_inline]] inline u32 through_bf16(u32 bits) { return (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff'0000; }

/// E4M3 of a finite number, to nearest even; 448 where it is more.
[[gnu::always_inline]] inline u32 e4m3_of(u32 bits) {
  const u32 magnitude = bits & ~kSign;
  const u32 bounded = choose_bits(magnitude > 0x43e0'0000, 0x43e0'0000, magnitude);
  const u32 normal = ((bounded + 0x7'ffff + (bounded >> 20 & 1)) >> 20) - (120U << 3);
  // Beside 2^14 a float has the steps of subnormal codes, 2^-9.
  const u32 subnormal = std::bit_cast<u32>(std::bit_cast<float>(bounded) + 0x1p14F) - std::bit_cast<u32>(0x1p14F);
  return choose_bits(bounded < 0x3c80'0000, subnormal, normal) | (bits >> 24 & 0x80);
}

/// The value of a code without a sign.
[[gnu::always_inline]] inline float value_of_e4m3(u32 code) {
  const u32 subnormal = std::bit_cast<u32>(static_cast<float>(static_cast<int>(code)) * 0x1p-9F);
  return std::bit_cast<float>(choose_bits(code < 8, subnormal, (code + (120U << 3)) << 20));
}

/// The scale of a cell: the bits that are stored, and the number that weights are multiplied with, or divided by.
struct CellScale {
  u32 stored = 0;
  float factor = 1;
};

}  // namespace

std::vector<std::string> known_encodings() {
  std::vector<std::string> words;
  for (const QuantFormat* format : quant_formats())
    for (const EncoderRow& row : format->encoders)
      if (std::ranges::find(words, row.word) == words.end()) words.emplace_back(row.word);
  return words;
}

std::vector<std::string> known_encoders() {
  std::vector<std::string> programs;
  for (const QuantFormat* format : quant_formats())
    for (const EncoderRow& row : format->encoders)
      if (std::ranges::find(programs, row.program) == programs.end()) programs.emplace_back(row.program);
  return programs;
}

Encoder find_encoder(std::string_view word, std::string_view program) {
  std::vector<std::string_view> programs;
  for (const QuantFormat* format : quant_formats())
    for (const EncoderRow& row : format->encoders) {
      if (row.word != word) continue;
      if (program.empty() || row.program == program) return {format, row, format->forms.begin()->codes};
      programs.push_back(row.program);
    }
  if (programs.empty()) fail(ErrorCode::Usage, {}, "--encode {}: there is no such format", word);
  fail(ErrorCode::Usage, {}, "--encode-as {}: no encoder of {} is known of it; there are {}", program, word,
       fmt::join(programs, ", "));
}

bool has_second_scale(const EncoderRow& row) {
  return row.rule == ScaleRule::Nvfp4ModelOpt || row.rule == ScaleRule::Nvfp4CompressedTensors;
}

float second_scale(const EncoderRow& row, float greatest, Dtype dtype) {
  constexpr float kMost = kMaxE4m3 * 6;
  if (row.rule == ScaleRule::Nvfp4ModelOpt) return greatest / kMost;
  // PyTorch writes a number through a tensor as its product with the inverse.
  return round_to(kMost * round_to(1 / greatest, dtype), dtype);
}

void cell_scales(const Encoder& encoder, std::span<const float> greatest_of_cells, Dtype dtype, float second,
                 u32* stored, float* factors) {
  const EncoderRow& row = encoder.row;
  // The rule is chosen once, not for each cell.
  const auto each = [&](auto scale_of) {
    for (std::size_t i = 0; i < greatest_of_cells.size(); ++i) {
      const CellScale scale = scale_of(greatest_of_cells[i]);
      stored[i] = scale.stored;
      factors[i] = scale.factor;
    }
  };
  const auto of_power = [&](u32 byte) { return CellScale{byte, inverse_power(byte, row.least)}; };
  const float most = encoder.codes == Codes::E2m1 ? 6 : kMaxE4m3;
  switch (row.rule) {
    case ScaleRule::Slime:
      return each([&](float greatest) -> CellScale {
        const float scale = std::max(greatest, round_to(1e-12F, dtype)) / kMaxE4m3;
        return {std::bit_cast<u32>(scale), scale};
      });
    case ScaleRule::DeepGemm:
      return each([&](float greatest) -> CellScale {
        const float scale = std::max(greatest, 1e-4F) / kMaxE4m3;
        return {std::bit_cast<u32>(scale), 1 / scale};
      });
    case ScaleRule::DeepGemmPower:
      return each([&](float greatest) -> CellScale {
        const u32 byte = std::clamp<u32>(power_up(std::max(greatest, 1e-4F) / kMaxE4m3), 1, 254);
        return {std::bit_cast<u32>(power(byte)), power(254 - byte)};
      });
    case ScaleRule::Transformers:
    case ScaleRule::TransformersPower:
      return each([&](float greatest) -> CellScale {
        const float inverse = greatest > 0 ? kMaxE4m3 * (1 / greatest) : 1;
        const float scale = 1 / inverse;
        if (row.rule == ScaleRule::Transformers) return {std::bit_cast<u32>(scale), inverse};
        const u32 byte = power_up(std::max(scale, 0x1p-126F));
        return {byte, power(254 - byte)};
      });
    case ScaleRule::CompressedTensors:
    case ScaleRule::ModelOpt:
      return each([&](float greatest) -> CellScale {
        float scale = round_to(greatest / kMaxE4m3, dtype);
        if (row.rule == ScaleRule::CompressedTensors) scale = not_zero(scale, dtype);
        return {bits_as(dtype, scale), scale};
      });
    case ScaleRule::PowerUp: return each([&](float greatest) { return of_power(power_up(greatest / most)); });
    case ScaleRule::PowerFloor:
    case ScaleRule::PowerRounded:
      return each([&](float greatest) -> CellScale {
        // The exponent of the greatest code: 448 is 1.75 * 2^8, and 6 is 1.5 * 2^2. The rounded one is taken from the
        // sixteen bits of BF16, and goes up from 1.75 on.
        const u32 bits = std::bit_cast<u32>(greatest);
        const u32 top = encoder.codes == Codes::E2m1 ? 2 : 8;
        const u32 exponent = row.rule == ScaleRule::PowerFloor ? bits >> 23 : ((bits >> 16) + 32) >> 7;
        return of_power(std::min<u32>(exponent - std::min(exponent, top), 254));
      });
    case ScaleRule::DeepGemmFp4:
      return each([&](float greatest) {
        return of_power(std::clamp<u32>(power_up(std::max(greatest, 1e-4F) / most), 1, 254));
      });
    case ScaleRule::Nvfp4ModelOpt:
      return each([&](float greatest) -> CellScale {
        const float whole = greatest / (6 * second);
        const u32 least = std::bit_cast<u32>(std::max(whole, 0x1p-9F));
        const u32 code = e4m3_of(choose_bits(whole == 0, std::bit_cast<u32>(1.0F), least));
        return {code, value_of_e4m3(code) * second};
      });
    case ScaleRule::Nvfp4CompressedTensors:
      return each([&](float greatest) -> CellScale {
        constexpr u32 kEighth = 0x20;
        const u32 code = e4m3_of(std::bit_cast<u32>(second * round_to(greatest / 6, dtype)));
        const u32 not_zero_code = choose_bits(code == 0, kEighth, code);
        return {not_zero_code, value_of_e4m3(not_zero_code) / second};
      });
    case ScaleRule::Int4:
      return each([&](float greatest) -> CellScale {
        const float scale = not_zero(round_to(greatest / 7.5F, dtype), dtype);
        return {bits_as(dtype, scale), scale};
      });
  }
}

namespace {

// ---- many at a time ---------------------------------------------------------------------------------

template <bool kBf16>
struct WeightBits;
template <>
struct WeightBits<true> {
  using Type = u16 __attribute__((aligned(1), may_alias));
  [[gnu::always_inline]] static float widened(u16 bits) { return std::bit_cast<float>(static_cast<u32>(bits) << 16); }
};
template <>
struct WeightBits<false> {
  using Type = u32 __attribute__((aligned(1), may_alias));
  [[gnu::always_inline]] static float widened(u32 bits) { return std::bit_cast<float>(bits); }
};

/// The least bits of a magnitude from which on it has the code 1, 2, ... of FP4, and what becomes of signs.
struct Fp4Steps {
  std::array<u32, 7> least{};
  /// The bits that are left of the sign of a zero, those that it gets, and those that are left where the code is 0.
  u32 zero_keeps = 8;
  u32 zero_gets = 0;
  u32 code_zero_keeps = 8;
};

Fp4Steps fp4_steps(const EncoderRow& row) {
  constexpr float kMiddles[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5};
  Fp4Steps steps;
  for (std::size_t i = 0; i < steps.least.size(); ++i) {
    // The code above the middle is i + 1, and even where i is odd.
    const bool up = row.ties == Ties::Away || (row.ties == Ties::Even && i % 2 == 1);
    steps.least[i] = std::bit_cast<u32>(kMiddles[i]) + (up ? 0 : 1);
  }
  if (row.signs != Signs::Kept) steps.zero_keeps = 0;
  if (row.signs == Signs::NotPositive) steps.zero_gets = 8;
  if (row.signs == Signs::NegativeCodes) steps.code_zero_keeps = 0;
  return steps;
}

[[gnu::always_inline]] inline u32 fp4_of(u32 bits, const Fp4Steps& steps) {
  const u32 magnitude = bits & ~kSign;
  u32 code = 0;
  for (const u32 least : steps.least) code += magnitude >= least ? 1 : 0;
  const u32 sign = bits >> 28 & 8;
  const u32 of_zero = (sign & steps.zero_keeps) | steps.zero_gets;
  const u32 kept = choose_bits(magnitude == 0, of_zero, sign);
  return code | choose_bits(code == 0, kept & (steps.code_zero_keeps), kept);
}

/// rint() of a number, from -8 to 7, and 8 more.
[[gnu::always_inline]] inline u32 int4_of(u32 bits) {
  const float value = std::bit_cast<float>(bits);
  const float bounded = std::min(std::max(value, -8.0F), 7.0F);
  // Beside 1.5 * 2^23 a float has steps of 1.
  return (std::bit_cast<u32>(bounded + 0x1.8p23F) - std::bit_cast<u32>(0x1.8p23F) + 8) & 15;
}

template <Codes kCodes>
[[gnu::always_inline]] inline u32 code_of(u32 bits, const Fp4Steps& steps) {
  if constexpr (kCodes == Codes::E4m3) return e4m3_of(bits);
  if constexpr (kCodes == Codes::E2m1) return fp4_of(bits, steps);
  return int4_of(bits);
}

struct EncodeCall {
  const std::byte* weights = nullptr;
  i64 count = 0;
  const float* factors = nullptr;
  i64 cell_cols = 0;
  bool rounds = false;
  Fp4Steps steps;
  std::byte* out = nullptr;
};

/// Weights that are encoded at once, in memory that nothing else points to, so that a compiler takes many at a time.
constexpr i64 kAtOnce = 256;

template <Codes kCodes, bool kBf16, bool kDivides, bool kRounds>
[[gnu::always_inline]] inline void encode_all(const EncodeCall& call) {
  using Weights = WeightBits<kBf16>;
  const Fp4Steps steps = call.steps;
  float factors[kAtOnce];
  u8 codes[kAtOnce];
  i64 cell = 0, cell_end = call.cell_cols;
  for (i64 begin = 0; begin < call.count; begin += kAtOnce) {
    const i64 count = std::min(kAtOnce, call.count - begin);
    for (i64 i = 0; i < count; i += kLeastCell) {
      if (begin + i == cell_end) {
        ++cell;
        cell_end += call.cell_cols;
      }
      for (i64 j = 0; j < kLeastCell; ++j) factors[i + j] = call.factors[cell];
    }
    const auto* const weights = reinterpret_cast<const typename Weights::Type*>(call.weights) + begin;
    for (i64 i = 0; i < count; ++i) {
      const float value = Weights::widened(weights[i]);
      const u32 bits = std::bit_cast<u32>(kDivides ? value / factors[i] : value * factors[i]);
      codes[i] = static_cast<u8>(code_of<kCodes>(kRounds ? through_bf16(bits) : bits, steps));
    }
    if constexpr (kCodes == Codes::E4m3) {
      std::memcpy(call.out + begin, codes, static_cast<std::size_t>(count));
    } else {
      for (i64 i = 0; i < count / 2; ++i)
        call.out[begin / 2 + i] = static_cast<std::byte>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
  }
}

template <Codes kCodes, bool kBf16>
[[gnu::always_inline]] inline void encode_ways(const EncodeCall& call, bool divides) {
  if (!divides) return encode_all<kCodes, kBf16, false, false>(call);
  if (call.rounds && kBf16) return encode_all<kCodes, kBf16, true, true>(call);
  encode_all<kCodes, kBf16, true, false>(call);
}

[[gnu::always_inline]] inline void encode_any(const EncodeCall& call, Codes codes, bool bf16, bool divides) {
  if (codes == Codes::E4m3)
    return bf16 ? encode_ways<Codes::E4m3, true>(call, divides) : encode_ways<Codes::E4m3, false>(call, divides);
  if (codes == Codes::E2m1)
    return bf16 ? encode_ways<Codes::E2m1, true>(call, divides) : encode_ways<Codes::E2m1, false>(call, divides);
  bf16 ? encode_ways<Codes::Int4, true>(call, divides) : encode_ways<Codes::Int4, false>(call, divides);
}
GLU_CKPT_AVX512 void encode_avx512(const EncodeCall& call, Codes codes, bool bf16, bool divides) {
  encode_any(call, codes, bf16, divides);
}
GLU_CKPT_AVX2 void encode_avx2(const EncodeCall& call, Codes codes, bool bf16, bool divides) {
  encode_any(call, codes, bf16, divides);
}
void encode_plain(const EncodeCall& call, Codes codes, bool bf16, bool divides) {
  encode_any(call, codes, bf16, divides);
}

template <bool kBf16>
[[gnu::always_inline]] inline float greatest_of_cell(const std::byte* data, i64 count) {
  using Bits = std::conditional_t<kBf16, u16, u32>;
  const auto* const weights = reinterpret_cast<const typename WeightBits<kBf16>::Type*>(data);
  Bits greatest = 0;
  for (i64 i = 0; i < count; ++i) greatest = std::max(greatest, static_cast<Bits>(weights[i] & (Bits(~Bits{}) >> 1)));
  return WeightBits<kBf16>::widened(std::min(greatest, static_cast<Bits>(kBf16 ? 0x7f80 : 0x7f80'0000)));
}

struct GreatestCall {
  const std::byte* weights = nullptr;
  i64 count = 0;
  i64 cell_cols = 0;
  float* greatest = nullptr;
};

template <bool kBf16>
[[gnu::always_inline]] inline void greatest_of_cells(const GreatestCall& call) {
  float* greatest = call.greatest;
  for (i64 first = 0; first < call.count; first += call.cell_cols, ++greatest) {
    const std::byte* const data = call.weights + first * (kBf16 ? 2 : 4);
    const i64 count = std::min(call.cell_cols, call.count - first);
    // A compiler makes a few instructions of a cell whose size it knows.
    const float of_cell = count == 16    ? greatest_of_cell<kBf16>(data, 16)
                          : count == 32  ? greatest_of_cell<kBf16>(data, 32)
                          : count == 128 ? greatest_of_cell<kBf16>(data, 128)
                                         : greatest_of_cell<kBf16>(data, count);
    *greatest = std::max(*greatest, of_cell);
  }
}
[[gnu::always_inline]] inline void greatest_any(const GreatestCall& call, bool bf16) {
  bf16 ? greatest_of_cells<true>(call) : greatest_of_cells<false>(call);
}
GLU_CKPT_AVX512 void greatest_avx512(const GreatestCall& call, bool bf16) { greatest_any(call, bf16); }
GLU_CKPT_AVX2 void greatest_avx2(const GreatestCall& call, bool bf16) { greatest_any(call, bf16); }
void greatest_plain(const GreatestCall& call, bool bf16) { greatest_any(call, bf16); }

// ---- one by one -------------------------------------------------------------------------------------

/// The number of the code, of those with no sign, whose value is nearest.
u32 nearest(double magnitude, std::span<const double> values, Ties ties) {
  const auto above = std::ranges::lower_bound(values, magnitude);
  const auto code = static_cast<u32>(above - values.begin());
  if (above == values.end()) return code - 1;
  if (code == 0) return 0;
  const double to_lower = magnitude - values[code - 1], to_upper = values[code] - magnitude;
  const bool up = ties == Ties::Away || (ties == Ties::Even && code % 2 == 0);
  return to_upper < to_lower || (to_upper == to_lower && up) ? code : code - 1;
}

u32 e4m3_by_search(float value) {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (u32 code = 0; code <= kE4m3.max_code; ++code) all.push_back(static_cast<double>(value_of_e4m3(code)));
    return all;
  }();
  return nearest(std::fabs(static_cast<double>(value)), values, Ties::Even) | (std::signbit(value) ? 0x80 : 0);
}

u32 fp4_by_search(float value, const EncoderRow& row) {
  static constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const u32 code = nearest(std::fabs(static_cast<double>(value)), kValues, row.ties);
  bool has_sign = false;
  switch (row.signs) {
    case Signs::Kept: has_sign = std::signbit(value); break;
    case Signs::Negative: has_sign = value < 0; break;
    case Signs::NotPositive: has_sign = value <= 0; break;
    case Signs::NegativeCodes: has_sign = value < 0 && code != 0; break;
  }
  return code | (has_sign ? 8 : 0);
}

}  // namespace

void raise_greatest(const std::byte* weights, i64 count, Dtype dtype, i64 cell_cols, float* greatest, SimdLevel level) {
  const GreatestCall call{weights, count, cell_cols, greatest};
  const bool bf16 = dtype == Dtype::BF16;
  if (level == SimdLevel::Avx512) return greatest_avx512(call, bf16);
  if (level == SimdLevel::Avx2) return greatest_avx2(call, bf16);
  greatest_plain(call, bf16);
}

void encode_row(const Encoder& encoder, const std::byte* weights, i64 count, Dtype dtype, const float* factors,
                i64 cell_cols, std::byte* out, SimdLevel level) {
  const EncoderRow& row = encoder.row;
  const EncodeCall call{weights, count, factors, cell_cols, row.rounds_quotient, fp4_steps(row), out};
  const bool bf16 = dtype == Dtype::BF16;
  if (level == SimdLevel::Avx512) return encode_avx512(call, encoder.codes, bf16, row.divides);
  if (level == SimdLevel::Avx2) return encode_avx2(call, encoder.codes, bf16, row.divides);
  encode_plain(call, encoder.codes, bf16, row.divides);
}

void encode_row_by_search(const Encoder& encoder, const std::byte* weights, i64 count, Dtype dtype,
                          const float* factors, i64 cell_cols, std::byte* out) {
  const EncoderRow& row = encoder.row;
  const i64 size = dtype_bits(dtype) / 8;
  u32 first = 0;
  for (i64 i = 0; i < count; ++i) {
    const float weight = widen_element(weights + i * size, dtype), factor = factors[i / cell_cols];
    float value = row.divides ? weight / factor : weight * factor;
    if (row.rounds_quotient) value = round_to(value, dtype);
    if (encoder.codes == Codes::E4m3) {
      out[i] = static_cast<std::byte>(e4m3_by_search(value));
      continue;
    }
    const u32 code = encoder.codes == Codes::E2m1
                         ? fp4_by_search(value, row)
                         : static_cast<u32>(std::clamp(std::nearbyint(value), -8.0F, 7.0F) + 8);
    if (i % 2 == 0)
      first = code;
    else
      out[i / 2] = static_cast<std::byte>(first | code << 4);
  }
}

}  // namespace glu_ckpt
