#pragma once
/// Decides which stored matrices TMA can read as they are, and in which boxes.

#include <optional>

#include "glu_ckpt/ops/grouped_mlp.hpp"

namespace glu_ckpt {

/// The columns of a tile: 128 bytes of 16-bit values, which is the row that TMA swizzles.
inline constexpr int kTileCols = 64;
/// The weight rows that one tensor map's boxes bring; a block takes two such halves. Tiles of many rows of tokens,
/// which the warpgroups make in turn, take shorter ones.
inline constexpr int kHalfRows = 128;
inline constexpr int kTurnHalfRows = 96;
/// All of them.
inline constexpr int kHalfLengths[] = {kHalfRows, kTurnHalfRows};

/// The boxes that cover some rows of a placement.
struct TmaBoxes {
  /// Rows within a GLU block, and GLU blocks, of one box.
  int rows = 0;
  int blocks = 0;
  /// The rows that one box brings, of which the rows to cover are a multiple.
  int box_rows = 0;
};

/// Returns nothing where TMA cannot read the matrix as it is stored. TMA needs all rows in one tensor, 16-bit elements,
/// dense columns, and addresses and steps that are multiples of 16 bytes. The rows of a GLU block must divide `rows` or
/// be a multiple of 8, or the matrix be one block. `rows` is a multiple of 16 up to 128. Pure.
std::optional<TmaBoxes> tma_boxes(const StoredMatrix& matrix, int rows = kHalfRows);

/// A dense matrix with `pitch` elements from one row to the next.
StoredMatrix dense_matrix(const void* data, Dtype dtype, i64 rows, i64 cols, i64 pitch);

}  // namespace glu_ckpt
