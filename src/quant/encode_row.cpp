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
#include <utility>

#include "core/encode_bits.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/mxfp8_bits.hpp"

namespace glu_ckpt {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;

template <ScaleRule kRule>
void scales_by(CellRule rule, std::span<const float> greatest, float second, u32* stored, float* factors) {
  rule.rule = kRule;
  for (std::size_t i = 0; i < greatest.size(); ++i) {
    const CellScale scale = encode_bits::cell_scale(rule, greatest[i], second);
    stored[i] = scale.stored;
    factors[i] = scale.factor;
  }
}

template <std::size_t... kRules>
constexpr auto loops_of_rules(std::index_sequence<kRules...>) {
  return std::array{&scales_by<static_cast<ScaleRule>(kRules)>...};
}

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

CellRule cell_rule(const Encoder& encoder, Dtype dtype) {
  const EncoderRow& row = encoder.row;
  const bool bf16 = dtype == Dtype::BF16;
  return {encoder.codes, row.rule, row.divides, bf16, row.rounds_quotient && bf16, row.least, row.ties, row.signs};
}

bool has_second_scale(const EncoderRow& row) {
  return row.rule == ScaleRule::Nvfp4ModelOpt || row.rule == ScaleRule::Nvfp4CompressedTensors;
}

float second_scale(const EncoderRow& row, float greatest, Dtype dtype) {
  constexpr float kMost = encode_bits::kMaxE4m3 * encode_bits::kMaxFp4;
  if (row.rule == ScaleRule::Nvfp4ModelOpt) return greatest / kMost;
  // PyTorch writes a number through a tensor as its product with the inverse.
  return round_to(kMost * round_to(1 / greatest, dtype), dtype);
}

void cell_scales(const Encoder& encoder, std::span<const float> greatest, Dtype dtype, float second, u32* stored,
                 float* factors) {
  const CellRule rule = cell_rule(encoder, dtype);
  // The rule is chosen once, not for each cell.
  constexpr auto kLoops = loops_of_rules(std::make_index_sequence<kScaleRules>());
  kLoops[static_cast<std::size_t>(rule.rule)](rule, greatest, second, stored, factors);
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

struct EncodeCall {
  const std::byte* weights = nullptr;
  i64 count = 0;
  const float* factors = nullptr;
  i64 cell_cols = 0;
  bool rounds = false;
  encode_bits::Fp4Steps steps;
  std::byte* out = nullptr;
};

/// Weights that are encoded at once, in memory that nothing else points to, so that a compiler takes many at a time.
constexpr i64 kAtOnce = 256;

template <Codes kCodes, bool kBf16, bool kDivides, bool kRounds>
[[gnu::always_inline]] inline void encode_all(const EncodeCall& call) {
  using Weights = WeightBits<kBf16>;
  const encode_bits::Fp4Steps steps = call.steps;
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
      codes[i] = static_cast<u8>(encode_bits::code_of<kCodes>(kRounds ? encode_bits::through_bf16(bits) : bits, steps));
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
    for (u32 code = 0; code <= kE4m3.max_code; ++code)
      all.push_back(static_cast<double>(encode_bits::value_of_e4m3(code)));
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
  const EncodeCall call{
      weights, count, factors, cell_cols, row.rounds_quotient, encode_bits::fp4_steps(cell_rule(encoder, dtype)), out};
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
