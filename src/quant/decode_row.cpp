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

// Without branches, so that the compiler takes as many at a time as the registers hold.

inline u16 bf16_of(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  // Just less than half of a unit, or half where the kept part is odd: the carry is what rounds to nearest even.
  const u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<u16>((bits & kMagnitude) > kInfinity ? kBf16Nan : rounded);
}

inline float f32_of(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  return std::bit_cast<float>((bits & kMagnitude) > kInfinity ? kF32Nan : bits);
}

/// A subnormal code is a whole number of the least one; the others differ from fp32 in the exponent's bias alone.
inline float e4m3_value(u32 code) {
  const u32 magnitude = code & 0x7f;
  const u32 normal = (magnitude << 20) + (120U << 23);
  const u32 subnormal = std::bit_cast<u32>(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-9F);
  const u32 finite = magnitude < 8 ? subnormal : normal;
  return std::bit_cast<float>((magnitude == 0x7f ? kF32Nan : finite) | (code & 0x80) << 24);
}

inline float e5m2_value(u32 code) {
  const u32 magnitude = code & 0x7f;
  const u32 normal = (magnitude << 21) + (112U << 23);
  const u32 subnormal = std::bit_cast<u32>(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-16F);
  const u32 finite = magnitude < 4 ? subnormal : normal;
  const u32 special = magnitude == 0x7c ? kInfinity : kF32Nan;
  return std::bit_cast<float>((magnitude >= 0x7c ? special : finite) | (code & 0x80) << 24);
}

inline float e2m1_value(u32 code, u32 sign_of_zero) {
  const u32 magnitude = code & 7;
  const u32 normal = ((magnitude >> 1) + 126) << 23 | (magnitude & 1) << 22;
  const u32 half = magnitude == 0 ? 0 : 0x3f00'0000;
  const u32 sign = (code & 8) << 28;
  return std::bit_cast<float>((magnitude < 2 ? half : normal) | (magnitude == 0 ? sign & sign_of_zero : sign));
}

template <Codes kCodes>
inline float byte_value(u32 code) {
  if constexpr (kCodes == Codes::E4m3) return e4m3_value(code);
  if constexpr (kCodes == Codes::E5m2) return e5m2_value(code);
  return static_cast<float>(static_cast<std::int8_t>(code));
}

template <Codes kCodes>
inline float half_value(u32 code, u32 sign_of_zero) {
  if constexpr (kCodes == Codes::E2m1) return e2m1_value(code, sign_of_zero);
  return static_cast<float>(static_cast<int>(code) - 8);
}

template <bool kBf16>
inline void put(float value, std::byte* out, i64 i) {
  if constexpr (kBf16) {
    const u16 bits = bf16_of(value);
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  } else {
    const float kept = f32_of(value);
    std::memcpy(out + 4 * i, &kept, sizeof kept);
  }
}

template <Codes kCodes, bool kBf16>
[[gnu::always_inline]] inline void decode_cell(const u8* codes, i64 count, float scale, u32 sign_of_zero,
                                               std::byte* out) {
  if constexpr (kCodes == Codes::E2m1 || kCodes == Codes::Int4) {
    for (i64 i = 0; i < count / 2; ++i) {
      put<kBf16>(half_value<kCodes>(codes[i] & 15U, sign_of_zero) * scale, out, 2 * i);
      put<kBf16>(half_value<kCodes>(codes[i] >> 4U, sign_of_zero) * scale, out, 2 * i + 1);
    }
  } else {
    for (i64 i = 0; i < count; ++i) put<kBf16>(byte_value<kCodes>(codes[i]) * scale, out, i);
  }
}

template <Codes kCodes, bool kBf16>
[[gnu::always_inline]] inline void decode_cells(const CodeRow& row, std::byte* out) {
  const auto* codes = reinterpret_cast<const u8*>(row.data);
  const u32 sign_of_zero = row.positive_zero ? 0 : 0x8000'0000;
  for (i64 first = 0, cell = 0; first < row.count; first += row.cell_cols, ++cell) {
    const i64 count = std::min(row.cell_cols, row.count - first);
    decode_cell<kCodes, kBf16>(codes + code_bytes(kCodes, first), count, row.scales[cell], sign_of_zero,
                               out + first * (kBf16 ? 2 : 4));
  }
}

using DecodeRow = void(const CodeRow&, std::byte*);

template <Codes kCodes, bool kBf16>
GLU_CKPT_AVX512 void decode_avx512(const CodeRow& row, std::byte* out) {
  decode_cells<kCodes, kBf16>(row, out);
}
template <Codes kCodes, bool kBf16>
GLU_CKPT_AVX2 void decode_avx2(const CodeRow& row, std::byte* out) {
  decode_cells<kCodes, kBf16>(row, out);
}
template <Codes kCodes, bool kBf16>
void decode_plain(const CodeRow& row, std::byte* out) {
  decode_cells<kCodes, kBf16>(row, out);
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

void decode_row_by_table(const CodeRow& row, Dtype to, std::byte* out) {
  const auto& table = code_table(row.codes);
  const i64 size = dtype_bits(to) / 8;
  const bool halves = code_bytes(row.codes, 2) == 1;
  for (i64 i = 0; i < row.count; ++i) {
    const auto byte = static_cast<u32>(row.data[halves ? i / 2 : i]);
    const u32 code = !halves ? byte : i % 2 == 0 ? byte & 15 : byte >> 4;
    float value = table[code];
    if (row.positive_zero && value == 0) value = 0;
    put_decoded(value * row.scales[i / row.cell_cols], to, out + i * size);
  }
}

float scale_value(Dtype dtype, const std::byte* data) {
  if (is_float(dtype)) return widen_element(data, dtype);
  const auto code = static_cast<u8>(*data);
  if (dtype == Dtype::F8_E4M3) return e4m3_value(code);
  return std::bit_cast<float>(e8m0_value_bits(code));
}

void put_decoded(float value, Dtype to, std::byte* out) {
  const u32 bits = std::isnan(value) ? kF32Nan : std::bit_cast<u32>(value);
  const float kept = std::bit_cast<float>(bits);
  narrow_row({&kept, 1}, to, out);
}

}  // namespace glu_ckpt
