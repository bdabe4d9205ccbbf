#pragma once
/// E4M3 codes of BF16 weights by tables: an eighth of the instructions of encode_row(), where many weights share a
/// cell.
///
/// Example: with the factor 0.25 a weight 1.5 * 2^k has the code 0x34 of 1.5 * 2^-1 and 8 more for each power of two
/// from there on, since a code has eight numbers to a power of two. So a cell needs the codes of the 128 significands
/// that a BF16 has, in one power of two; all others follow by an addition.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/simd.hpp"
#include "glu_ckpt/tensor.hpp"
#include "quant/encode_row.hpp"

namespace glu_ckpt {

/// The codes of one cell's weights.
struct CellTable {
  /// Of weights without a sign whose exponent field is `exponent`, by their significand.
  alignas(64) std::array<std::uint8_t, 128> codes{};
  std::uint32_t exponent = 0;
  float factor = 1;
};

/// The fewest weights of a cell that repay its table.
inline constexpr i64 kLeastForCellTable = 512;

/// Returns a table for each of the `factors`; none where the processor, the codes or the weights are of another kind,
/// or where a factor is so small or so great that quotients in the middle of E4M3 belong to no finite BF16.
std::vector<CellTable> make_cell_tables(const Encoder& encoder, std::span<const float> factors, Dtype dtype,
                                        SimdLevel level);

/// Writes what encode_row() writes, at the level of make_cell_tables().
void encode_row_by_tables(const Encoder& encoder, const std::byte* weights, i64 count, const CellTable* tables,
                          i64 cell_cols, std::byte* out);

}  // namespace glu_ckpt
