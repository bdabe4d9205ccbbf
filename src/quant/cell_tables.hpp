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

/// The tables of cells, by their factors.
class CellTables {
 public:
  /// Makes none where the processor, the codes or the weights are of another kind, where a factor is so small or so
  /// great that quotients in the middle of E4M3 belong to no finite BF16, and where a cell has too few weights to repay
  /// its table.
  CellTables(const Encoder& encoder, std::span<const float> factors, Dtype dtype, i64 weights_of_cell, SimdLevel level);
  CellTables() = default;

  bool empty() const { return cells_.empty(); }

  /// Writes what encode_row() writes for `count` weights whose first cell is `first`.
  void encode_row(const Encoder& encoder, const std::byte* weights, i64 count, std::size_t first, i64 cell_cols,
                  std::byte* out) const;

  /// The codes of weights without a sign whose exponent field is that of their cell, by their significand.
  using Table = std::array<std::uint8_t, 128>;
  struct Cell {
    std::uint32_t exponent = 0;
    float factor = 1;
  };

 private:
  std::vector<Table> tables_;
  std::vector<Cell> cells_;
};

}  // namespace glu_ckpt
