#include "quant/decode_row.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/float_rows.hpp"
#include "core/mxfp8_bits.hpp"

namespace glu_ckpt {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;

constexpr u32 kMagnitude = 0x7fff'ffff;
constexpr u32 kInfinity = 0x7f80'0000;
constexpr u16 kBf16Nan = 0x7fc0;

// These functions have no branches and one loop over a whole row, so that the compiler takes as many codes at a time as
// the registers hold.

/// `a` or `b`, without a branch.
inline u32 select(bool first, u32 a, u32 b) { return first ? a : b; }

inline u16 bf16_of(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  // Just less than half of a unit, or half where the kept part is odd: the carry is what rounds to nearest even.
  const u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<u16>(select((bits & kMagnitude) > kInfinity, kBf16Nan, rounded));
}

inline float f32_of(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  return std::bit_cast<float>(select((bits & kMagnitude) > kInfinity, kF32Nan, bits));
}

/// A code of FP8 as fp32, sign aside: the exponent's bias differs. A subnormal code is read as if it had the leading
/// one of the least normal number, which is then taken away; of the others zero is.
template <int kMantissaBits, u32 kBias>
inline u32 fp8_bits(u32 magnitude) {
  constexpr u32 kBase = (127 - kBias) << 23;
  constexpr u32 kLeastNormal = kBase + (1U << 23);
  // This is a mask: gcc makes a branch of a condition that is asked twice.
  const u32 subnormal = u32{0} - static_cast<u32>(magnitude < (1U << kMantissaBits));
  const u32 bits = (magnitude << (23 - kMantissaBits)) + kBase + (subnormal & (1U << 23));
  return std::bit_cast<u32>(std::bit_cast<float>(bits) - std::bit_cast<float>(subnormal & kLeastNormal));
}

inline float e4m3_value(u32 code) {
  const u32 magnitude = code & 0x7f;
  // Any NaN; which one it is is settled where it is rounded.
  const u32 nan = kF32Nan & (u32{0} - static_cast<u32>(magnitude == 0x7f));
  return std::bit_cast<float>(fp8_bits<3, 7>(magnitude) | nan | (code & 0x80) << 24);
}

inline float e5m2_value(u32 code) {
  const u32 magnitude = code & 0x7f;
  const u32 special = select(magnitude == 0x7c, kInfinity, kF32Nan);
  const u32 bits = select(magnitude >= 0x7c, special, fp8_bits<2, 15>(magnitude));
  return std::bit_cast<float>(bits | (code & 0x80) << 24);
}

inline float e2m1_value(u32 code, u32 sign_of_zero) {
  const u32 magnitude = code & 7;
  const u32 normal = ((magnitude >> 1) + 126) << 23 | (magnitude & 1) << 22;
  const u32 half = select(magnitude == 0, 0, 0x3f00'0000);
  const u32 sign = (code & 8) << 28;
  return std::bit_cast<float>(select(magnitude < 2, half, normal) | select(magnitude == 0, sign & sign_of_zero, sign));
}

template <Codes kCodes>
inline float code_value(u32 code, u32 sign_of_zero) {
  if constexpr (kCodes == Codes::E4m3) return e4m3_value(code);
  if constexpr (kCodes == Codes::E5m2) return e5m2_value(code);
  if constexpr (kCodes == Codes::E2m1) return e2m1_value(code, sign_of_zero);
  if constexpr (kCodes == Codes::Int8) return static_cast<float>(static_cast<std::int8_t>(code));
  return static_cast<float>(static_cast<int>(code) - 8);
}

/// An element at any address.
template <bool kBf16>
struct Unaligned;
template <>
struct Unaligned<true> {
  using Type = u16 __attribute__((aligned(1), may_alias));
  static u16 of(float value) { return bf16_of(value); }
};
template <>
struct Unaligned<false> {
  using Type = float __attribute__((aligned(1), may_alias));
  static float of(float value) { return f32_of(value); }
};

template <Codes kCodes, bool kBf16>
[[gnu::always_inline]] inline void decode_codes(const u8* __restrict codes, i64 count, const float* __restrict scales,
                                                u32 sign_of_zero, typename Unaligned<kBf16>::Type* __restrict out) {
  if constexpr (kCodes == Codes::E2m1 || kCodes == Codes::Int4) {
    for (i64 i = 0; i < count / 2; ++i) {
      const u32 byte = codes[i];
      out[2 * i] = Unaligned<kBf16>::of(code_value<kCodes>(byte & 15, sign_of_zero) * scales[2 * i]);
      out[2 * i + 1] = Unaligned<kBf16>::of(code_value<kCodes>(byte >> 4, sign_of_zero) * scales[2 * i + 1]);
    }
  } else {
    for (i64 i = 0; i < count; ++i)
      out[i] = Unaligned<kBf16>::of(code_value<kCodes>(codes[i], sign_of_zero) * scales[i]);
  }
}

template <Codes kCodes, bool kBf16>
[[gnu::always_inline]] inline void decode_whole(const CodeRow& row, std::byte* out) {
  decode_codes<kCodes, kBf16>(reinterpret_cast<const u8*>(row.data), row.count, row.scales,
                              row.positive_zero ? 0 : 0x8000'0000,
                              reinterpret_cast<typename Unaligned<kBf16>::Type*>(out));
}

/// Returns whether the magnitude of a code is `least` or more.
[[gnu::always_inline]] inline bool reaches(const u8* codes, i64 count, u8 least) {
  u8 greatest = 0;
  for (i64 i = 0; i < count; ++i) greatest = std::max(greatest, static_cast<u8>(codes[i] & 0x7f));
  return greatest >= least;
}
GLU_CKPT_AVX512 bool reaches_avx512(const u8* codes, i64 count, u8 least) { return reaches(codes, count, least); }
GLU_CKPT_AVX2 bool reaches_avx2(const u8* codes, i64 count, u8 least) { return reaches(codes, count, least); }

using DecodeRow = void(const CodeRow&, std::byte*);

template <Codes kCodes, bool kBf16>
GLU_CKPT_AVX512 void decode_avx512(const CodeRow& row, std::byte* out) {
  decode_whole<kCodes, kBf16>(row, out);
}
template <Codes kCodes, bool kBf16>
GLU_CKPT_AVX2 void decode_avx2(const CodeRow& row, std::byte* out) {
  decode_whole<kCodes, kBf16>(row, out);
}
template <Codes kCodes, bool kBf16>
void decode_plain(const CodeRow& row, std::byte* out) {
  decode_whole<kCodes, kBf16>(row, out);
}

template <Codes kCodes, bool kBf16>
DecodeRow* of_level(SimdLevel level) {
  if (level == SimdLevel::Avx512) return decode_avx512<kCodes, kBf16>;
  return level == SimdLevel::Avx2 ? decode_avx2<kCodes, kBf16> : decode_plain<kCodes, kBf16>;
}

template <bool kBf16>
DecodeRow* of_codes(Codes codes, SimdLevel level) {
  switch (codes) {
    case Codes::E4m3: return of_level<Codes::E4m3, kBf16>(level);
    case Codes::E5m2: return of_level<Codes::E5m2, kBf16>(level);
    case Codes::Int8: return of_level<Codes::Int8, kBf16>(level);
    case Codes::E2m1: return of_level<Codes::E2m1, kBf16>(level);
    default: return of_level<Codes::Int4, kBf16>(level);
  }
}

// ---- by table -------------------------------------------------------------------------------------

/// A sign, then exponent and mantissa: (1 + m / 2^M) * 2^(e - bias), and m / 2^M * 2^(1 - bias) where e is 0.
float minifloat(u32 code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const u32 mantissa = code & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>(code >> mantissa_bits & ((1U << exponent_bits) - 1));
  const float fraction = std::ldexp(static_cast<float>(mantissa), -mantissa_bits);
  const float value = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (code >> (exponent_bits + mantissa_bits) & 1) != 0 ? -value : value;
}

std::array<float, 256> make_code_table(Codes codes) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::array<float, 256> table{};
  for (u32 code = 0; code < 256; ++code) {
    const u32 magnitude = code & 0x7f;
    if (codes == Codes::E4m3) table[code] = magnitude == 0x7f ? kNan : minifloat(code, 4, 3);
    if (codes == Codes::E5m2) table[code] = magnitude > 0x7c ? kNan : minifloat(code, 5, 2);
    if (codes == Codes::E5m2 && magnitude == 0x7c)
      table[code] = std::copysign(std::numeric_limits<float>::infinity(), code > 0x7f ? -1.0F : 1.0F);
    if (codes == Codes::Int8)
      table[code] = static_cast<float>(code < 128 ? static_cast<int>(code) : static_cast<int>(code) - 256);
    if (codes == Codes::E2m1) table[code] = minifloat(code & 15, 2, 1);
    if (codes == Codes::Int4) table[code] = static_cast<float>(static_cast<int>(code & 15) - 8);
  }
  return table;
}

const std::array<float, 256>& code_table(Codes codes) {
  static const std::array<std::array<float, 256>, 5> tables = {
      make_code_table(Codes::E4m3), make_code_table(Codes::E5m2), make_code_table(Codes::Int8),
      make_code_table(Codes::E2m1), make_code_table(Codes::Int4)};
  return tables[static_cast<std::size_t>(codes)];
}

}  // namespace

void decode_row(const CodeRow& row, Dtype to, std::byte* out, SimdLevel level) {
  (to == Dtype::BF16 ? of_codes<true>(row.codes, level) : of_codes<false>(row.codes, level))(row, out);
}

bool has_special_code(const CodeRow& row, SimdLevel level) {
  if (row.codes != Codes::E4m3 && row.codes != Codes::E5m2) return false;
  const auto least = static_cast<u8>(row.codes == Codes::E4m3 ? 0x7f : 0x7c);
  const auto* const codes = reinterpret_cast<const u8*>(row.data);
  if (level == SimdLevel::Avx512) return reaches_avx512(codes, row.count, least);
  return level == SimdLevel::Avx2 ? reaches_avx2(codes, row.count, least) : reaches(codes, row.count, least);
}

void decode_row_by_table(const CodeRow& row, Dtype to, std::byte* out) {
  const auto& table = code_table(row.codes);
  const i64 size = dtype_bits(to) / 8;
  const bool halves = code_bytes(row.codes, 2) == 1;
  for (i64 i = 0; i < row.count; ++i) {
    const auto byte = static_cast<u32>(row.data[halves ? i / 2 : i]);
    const u32 code = !halves ? byte : i % 2 == 0 ? byte & 15 : byte >> 4;
    float value = table[code];
    if (row.positive_zero && value == 0) value = 0;
    put_decoded(value * row.scales[i], to, out + i * size);
  }
}

float scale_value(Dtype dtype, const std::byte* data) {
  if (is_float(dtype)) return widen_element(data, dtype);
  const auto code = static_cast<u8>(*data);
  if (dtype == Dtype::F8_E4M3) return fp8_decoded(code, kE4m3);
  return std::bit_cast<float>(e8m0_value_bits(code));
}

float CombinedScale::of(float scale, Dtype to) const {
  if (global) scale = divides ? scale / *global : scale * *global;
  return rounds ? round_to(scale, to) : scale;
}

void put_decoded(float value, Dtype to, std::byte* out) {
  const u32 bits = std::isnan(value) ? kF32Nan : std::bit_cast<u32>(value);
  const float kept = std::bit_cast<float>(bits);
  narrow_row({&kept, 1}, to, out);
}

}  // namespace glu_ckpt
