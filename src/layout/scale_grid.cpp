#include "layout/scale_grid.hpp"

#include <algorithm>
#include <optional>

namespace glu_ckpt {
namespace {

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

/// At most one unpadded grid has a given shape: R, C > 0 are of other size than R / 32, C / 32. A padded one of the
/// same shape has no padding.
std::optional<ScaleGrid> find_mx_grid(const MatrixExtents& weight, i64 stored_rows, i64 stored_cols) {
  for (const ScaleGrid& grid : kMxGrids) {
    if (weight.rows % grid.rows != 0 || weight.cols % grid.cols != 0) continue;
    const MatrixExtents stored = stored_extents(grid, weight);
    if (stored.rows == stored_rows && stored.cols == stored_cols) return grid;
  }
  return std::nullopt;
}

}  // namespace

MatrixExtents scale_extents(const ScaleGrid& grid, const MatrixExtents& weight) {
  return {ceil_div(weight.rows, grid.rows), ceil_div(weight.cols, grid.cols)};
}

MatrixExtents padded(const ScaleGrid& grid, const MatrixExtents& scales) {
  return {ceil_div(scales.rows, grid.row_multiple) * grid.row_multiple,
          ceil_div(scales.cols, grid.col_multiple) * grid.col_multiple};
}

MatrixExtents stored_extents(const ScaleGrid& grid, const MatrixExtents& weight) {
  return padded(grid, scale_extents(grid, weight));
}

bool can_be_mx(Dtype weight, Dtype scale) {
  return (weight == Dtype::F8_E4M3 || weight == Dtype::F8_E5M2) && (scale == Dtype::U8 || scale == Dtype::F8_E8M0);
}

bool is_mx_scale(const TensorRef& weight, const TensorRef& scale) {
  const std::size_t axes = weight.shape.size();
  if (!can_be_mx(weight.dtype, scale.dtype) || axes < 2 || scale.shape.size() != axes) return false;
  if (!std::equal(weight.shape.begin(), weight.shape.end() - 2, scale.shape.begin())) return false;
  return find_mx_grid({weight.shape[axes - 2], weight.shape[axes - 1]}, scale.shape[axes - 2], scale.shape[axes - 1])
      .has_value();
}

ScaleGrid scale_grid(const TensorRef& weight_ref, const TensorRef& scale, const MatrixExtents& weight, Axes axes) {
  const std::size_t count = scale.shape.size();
  if (axes != Axes::OutIn || count < 2 || !can_be_mx(weight_ref.dtype, scale.dtype)) return kFp8Blocks;
  return find_mx_grid(weight, scale.shape[count - 2], scale.shape[count - 1]).value_or(kFp8Blocks);
}

bool shares_tensor(const ExpertBlock& block, const Matrix& matrix) {
  return block.fused && block.glu.kind != Glu::Kind::None && (matrix.role == Role::Gate || matrix.role == Role::Up);
}

i64 padding_rows(const Matrix& matrix, bool shared) {
  if (shared && matrix.role == Role::Up) return 0;
  const i64 rows = shared ? 2 * matrix.rows : matrix.rows;
  return padded(matrix.grid, {rows, matrix.cols}).rows - rows;
}

}  // namespace glu_ckpt
