#pragma once
/// What the copy engine is told of a matrix in device memory.

#include "kernels/mlp/matrix_mlp.hpp"

namespace glu_ckpt {

/// Throws DeviceFailed.
WeightMap make_weight_map(const StoredMatrix& matrix, const WeightBoxes& boxes);
/// Rows [rows, cols] of 16-bit elements, `pitch` elements apart, in boxes of `box_rows` rows.
CUtensorMap make_rows_map(const void* data, Dtype dtype, i64 rows, i64 cols, i64 pitch, int box_rows);

}  // namespace glu_ckpt
