#pragma once
/// Device functions that find and read the elements of a StoredMatrix.

#include "kernels/mlp/epilogue.cuh"

namespace glu_ckpt {

/// The first byte of row r, and the bytes from one of its columns to the next.
struct StoredRow {
  const std::byte* data;
  i64 col_step;
};

__device__ inline StoredRow stored_row(const StoredMatrix& matrix, i64 row) {
  const StoredMatrix::Part& part = row < matrix.tail_row ? matrix.first : matrix.tail;
  const Placement& place = part.place;
  const i64 block = row / place.block_rows;
  return {part.data + place.offset + block * place.block_step + (row - block * place.block_rows) * place.row_step,
          place.col_step};
}

/// BF16, F16 or F32, at any address that its dtype's alignment allows.
__device__ inline float stored_value(const std::byte* at, Dtype dtype) {
  switch (dtype) {
    case Dtype::BF16: return widen(*reinterpret_cast<const __nv_bfloat16*>(at));
    case Dtype::F16: return widen(*reinterpret_cast<const __half*>(at));
    default: return *reinterpret_cast<const float*>(at);
  }
}

}  // namespace glu_ckpt
