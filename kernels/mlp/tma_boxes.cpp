#include "kernels/mlp/tma_boxes.hpp"

#include <cstdint>
#include <numeric>

namespace glu_ckpt {
namespace {

constexpr i64 kElementBytes = 2;
/// TMA needs addresses and steps that are multiples of this.
constexpr i64 kTmaAlignment = 16;
/// A box's rows fill a whole pattern of the swizzle.
constexpr i64 kSwizzleRows = 8;
/// Sizes and coordinates are 32 bits, steps are below 2^40.
constexpr i64 kMostSize = INT32_MAX;
constexpr i64 kMostStep = i64{1} << 40;

bool is_readable(const StoredMatrix& matrix) {
  const Placement& place = matrix.first.place;
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.first.data) + static_cast<std::uintptr_t>(place.offset);
  return matrix.tail_row == matrix.rows && (matrix.dtype == Dtype::BF16 || matrix.dtype == Dtype::F16) &&
         (matrix.cols == 1 || place.col_step == kElementBytes) && address % kTmaAlignment == 0 &&
         place.row_step % kTmaAlignment == 0 && place.block_step % kTmaAlignment == 0 && place.row_step < kMostStep &&
         place.block_step < kMostStep && matrix.rows <= kMostSize && matrix.cols <= kMostSize;
}

}  // namespace

std::optional<TmaBoxes> tma_boxes(const StoredMatrix& matrix, int rows) {
  if (!is_readable(matrix)) return std::nullopt;
  const i64 block_rows = matrix.first.place.block_rows;
  // All rows are in one block: what is beyond them is beyond the matrix, and TMA brings zeros.
  if (block_rows >= matrix.rows || block_rows % rows == 0) return TmaBoxes{rows, 1, rows};
  if (rows % block_rows == 0) return TmaBoxes{static_cast<int>(block_rows), static_cast<int>(rows / block_rows), rows};
  const auto common = static_cast<int>(std::gcd(block_rows, i64{rows}));
  if (common % kSwizzleRows != 0) return std::nullopt;
  return TmaBoxes{common, 1, common};
}

StoredMatrix dense_matrix(const void* data, Dtype dtype, i64 rows, i64 cols, i64 pitch) {
  const i64 row_step = pitch * kElementBytes;
  return {.dtype = dtype,
          .rows = rows,
          .cols = cols,
          .first = {static_cast<const std::byte*>(data), {0, rows, rows * row_step, row_step, kElementBytes}},
          .tail = {},
          .tail_row = rows};
}

}  // namespace glu_ckpt
