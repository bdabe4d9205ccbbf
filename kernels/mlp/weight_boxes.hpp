#pragma once
/// Which stored matrices the copy engine can read as they are, and in what boxes.

#include <optional>

#include "glu_ckpt/ops/grouped_mlp.hpp"

namespace glu_ckpt {

/// Columns of a tile: 128 bytes of 16-bit values, what the copy engine swizzles.
inline constexpr int kTileCols = 64;
/// Weight rows that one tensor map's boxes bring, and of which a block takes two such halves.
inline constexpr int kHalfRows = 128;

/// How boxes cover kHalfRows rows of a placement.
struct WeightBoxes {
  /// Rows within a block of K, and blocks of K, of one box.
  int rows = 0;
  int blocks = 0;
  /// Rows that one box brings; divides kHalfRows.
  int box_rows = 0;
};

/// Nothing where the copy engine cannot read the matrix as it is stored. It wants all rows in one tensor, 16-bit
/// elements, dense columns, addresses and steps of multiples of 16 bytes; K a power of two or a multiple of 8, or one
/// block. Pure.
std::optional<WeightBoxes> weight_boxes(const StoredMatrix& matrix);

/// A dense matrix with `pitch` elements from one row to the next.
StoredMatrix dense_matrix(const void* data, Dtype dtype, i64 rows, i64 cols, i64 pitch);

}  // namespace glu_ckpt
