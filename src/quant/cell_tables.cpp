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
/// The fewest weights of a cell that repay its table.
constexpr i64 kLeastForTable = 512;

bool has_byte_tables(SimdLevel level) {
  static const bool has = __builtin_cpu_supports("avx512vbmi") != 0;
  return has && level == SimdLevel::Avx512;
}

/// Some cells of a row, each with its table.
struct CellsOfRow {
  const std::byte* weights = nullptr;
  i64 count = 0;
  i64 cell_cols = 0;
  const CellTables::Cell* cells = nullptr;
  const CellTables::Table* tables = nullptr;
  std::byte* out = nullptr;
};

/// Weights whose codes are those of subnormal numbers go through encode_row(): the steps of these have one size.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi"))) void encode_cells(const Encoder& encoder,
                                                                                           const CellsOfRow& row) {
  const __m512i least = _mm512_set1_epi16(kFirstNormal), greatest = _mm512_set1_epi16(kGreatestCode);
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), exponents = _mm512_set1_epi16(0x7f8);
  const __m512i sign = _mm512_set1_epi16(0x80);
  const CellTables::Table* table = row.tables;
  const CellTables::Cell* cell = row.cells;
  for (i64 begin = 0; begin < row.count; begin += row.cell_cols, ++cell, ++table) {
    const __m512i lower = _mm512_loadu_si512(table->data()), upper = _mm512_loadu_si512(table->data() + 64);
    const __m512i first = _mm512_set1_epi16(static_cast<short>(kCodesOfPower * static_cast<int>(cell->exponent)));
    const i64 end = std::min(begin + row.cell_cols, row.count);
    for (i64 i = begin; i < end; i += kTableLanes) {
      const i64 here = std::min(kTableLanes, end - i);
      const __mmask32 lanes = here == kTableLanes ? ~__mmask32{0} : (__mmask32{1} << here) - 1;
      const __m512i bits = _mm512_maskz_loadu_epi16(lanes, row.weights + 2 * i);
      // A byte's lower seven bits are its place in both halves of the table; the upper byte of a weight gets none.
      const __m512i of_significand = _mm512_maskz_permutex2var_epi8(0x5555'5555'5555'5555, lower, bits, upper);
      const __m512i powers = _mm512_and_si512(_mm512_srli_epi16(bits, 4), exponents);
      const __m512i code = _mm512_sub_epi16(_mm512_add_epi16(powers, of_significand), first);
      const __mmask32 small = _mm512_mask_cmplt_epi16_mask(_mm512_test_epi16_mask(bits, magnitude), code, least);
      const __m512i bounded = _mm512_max_epi16(_mm512_min_epi16(code, greatest), _mm512_setzero_si512());
      const __m512i with_sign = _mm512_or_si512(bounded, _mm512_and_si512(_mm512_srli_epi16(bits, 8), sign));
      _mm512_mask_cvtepi16_storeu_epi8(row.out + i, lanes, with_sign);
      if (small != 0) [[unlikely]]
        encode_row(encoder, row.weights + 2 * i, here, Dtype::BF16, &cell->factor, kTableLanes, row.out + i,
                   SimdLevel::Avx512);
    }
  }
}

}  // namespace

CellTables::CellTables(const Encoder& encoder, std::span<const float> factors, Dtype dtype, i64 weights_of_cell,
                       SimdLevel level) {
  if (!has_byte_tables(level) || encoder.codes != Codes::E4m3 || dtype != Dtype::BF16) return;
  const auto exponent_of = [](float factor) { return std::bit_cast<u32>(factor) >> 23; };
  const auto is_usual = [&](float factor) {
    return exponent_of(factor) >= kLeastExponent && exponent_of(factor) <= kGreatestExponent;
  };
  if (weights_of_cell < kLeastForTable || !std::ranges::all_of(factors, is_usual)) return;
  cells_.resize(factors.size());
  tables_.resize(factors.size());
  for (std::size_t i = 0; i < factors.size(); ++i) {
    // Quotients, or products, of weights with this exponent are near 1.
    cells_[i] = {encoder.row.divides ? exponent_of(factors[i]) : 254 - exponent_of(factors[i]), factors[i]};
    std::array<std::uint16_t, 128> weights;
    for (u32 significand = 0; significand < weights.size(); ++significand)
      weights[significand] = static_cast<std::uint16_t>(cells_[i].exponent << 7 | significand);
    glu_ckpt::encode_row(encoder, std::as_bytes(std::span(weights)).data(), std::ssize(weights), dtype,
                         &cells_[i].factor, std::ssize(weights), reinterpret_cast<std::byte*>(tables_[i].data()),
                         level);
  }
}

void CellTables::encode_row(const Encoder& encoder, const std::byte* weights, i64 count, std::size_t first,
                            i64 cell_cols, std::byte* out) const {
  encode_cells(encoder, {weights, count, cell_cols, cells_.data() + first, tables_.data() + first, out});
}
#else
CellTables::CellTables(const Encoder&, std::span<const float>, Dtype, i64, SimdLevel) {}

void CellTables::encode_row(const Encoder&, const std::byte*, i64, std::size_t, i64, std::byte*) const {}
#endif

}  // namespace glu_ckpt
