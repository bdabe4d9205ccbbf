#include "quant/cell_tables.hpp"

#include <algorithm>
#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace glu_ckpt {

#if defined(__x86_64__)
namespace {

/// Exponent fields of factors. Below, weights that are subnormal would have normal codes, and above, the factor of a
/// product would be subnormal itself.
constexpr u32 kLeastExponent = 16, kGreatestExponent = 238;
constexpr int kCodesOfPower = 8;
/// The least code of a normal number, and that of 448.
constexpr short kFirstNormal = 8, kGreatestCode = 0x7e;
constexpr i64 kTableLanes = 32;

bool has_byte_tables(SimdLevel level) {
  static const bool has = __builtin_cpu_supports("avx512vbmi") != 0;
  return has && level == SimdLevel::Avx512;
}

/// Weights whose codes are those of subnormal numbers go through encode_row(): the steps of these have one size.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi"))) void encode_cell(
    const Encoder& encoder, const std::byte* weights, i64 count, const CellTable& table, std::byte* out) {
  const __m512i lower = _mm512_load_si512(table.codes.data()), upper = _mm512_load_si512(table.codes.data() + 64);
  const __m512i first = _mm512_set1_epi16(static_cast<short>(kCodesOfPower * static_cast<int>(table.exponent)));
  const __m512i least = _mm512_set1_epi16(kFirstNormal), greatest = _mm512_set1_epi16(kGreatestCode);
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), exponents = _mm512_set1_epi16(0x7f8);
  const __m512i sign = _mm512_set1_epi16(0x80);
  for (i64 i = 0; i < count; i += kTableLanes) {
    const i64 here = std::min(kTableLanes, count - i);
    const __mmask32 lanes = here == kTableLanes ? ~__mmask32{0} : (__mmask32{1} << here) - 1;
    const __m512i bits = _mm512_maskz_loadu_epi16(lanes, weights + 2 * i);
    // A byte's lower seven bits are its place in both halves of the table; the upper byte of a weight gets none.
    const __m512i of_significand = _mm512_maskz_permutex2var_epi8(0x5555'5555'5555'5555, lower, bits, upper);
    const __m512i powers = _mm512_and_si512(_mm512_srli_epi16(bits, 4), exponents);
    const __m512i code = _mm512_sub_epi16(_mm512_add_epi16(powers, of_significand), first);
    const __mmask32 small = _mm512_mask_cmplt_epi16_mask(_mm512_test_epi16_mask(bits, magnitude), code, least);
    const __m512i bounded = _mm512_max_epi16(_mm512_min_epi16(code, greatest), _mm512_setzero_si512());
    const __m512i with_sign = _mm512_or_si512(bounded, _mm512_and_si512(_mm512_srli_epi16(bits, 8), sign));
    _mm512_mask_cvtepi16_storeu_epi8(out + i, lanes, with_sign);
    if (small != 0) [[unlikely]]
      encode_row(encoder, weights + 2 * i, here, Dtype::BF16, &table.factor, kTableLanes, out + i, SimdLevel::Avx512);
  }
}

}  // namespace

std::vector<CellTable> make_cell_tables(const Encoder& encoder, std::span<const float> factors, Dtype dtype,
                                        SimdLevel level) {
  if (!has_byte_tables(level) || encoder.codes != Codes::E4m3 || dtype != Dtype::BF16) return {};
  std::vector<CellTable> tables(factors.size());
  std::array<std::uint16_t, 128> weights;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const u32 exponent = std::bit_cast<u32>(factors[i]) >> 23;
    if (exponent < kLeastExponent || exponent > kGreatestExponent) return {};
    CellTable& table = tables[i];
    table.factor = factors[i];
    // The weights whose quotient, or product, is near 1.
    table.exponent = encoder.row.divides ? exponent : 254 - exponent;
    for (u32 significand = 0; significand < weights.size(); ++significand)
      weights[significand] = static_cast<std::uint16_t>(table.exponent << 7 | significand);
    encode_row(encoder, std::as_bytes(std::span(weights)).data(), std::ssize(weights), dtype, &table.factor,
               std::ssize(weights), reinterpret_cast<std::byte*>(table.codes.data()), level);
  }
  return tables;
}

void encode_row_by_tables(const Encoder& encoder, const std::byte* weights, i64 count, const CellTable* tables,
                          i64 cell_cols, std::byte* out) {
  for (i64 begin = 0; begin < count; begin += cell_cols)
    encode_cell(encoder, weights + 2 * begin, std::min(cell_cols, count - begin), *tables++, out + begin);
}
#else
std::vector<CellTable> make_cell_tables(const Encoder&, std::span<const float>, Dtype, SimdLevel) { return {}; }

void encode_row_by_tables(const Encoder&, const std::byte*, i64, const CellTable*, i64, std::byte*) {}
#endif

}  // namespace glu_ckpt
