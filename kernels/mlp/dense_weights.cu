/// Stored matrices made dense on the device, for kernels whose rows must follow one another.

#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/stored_element.cuh"

namespace glu_ckpt {
namespace {

constexpr int kTile = 32;
constexpr int kTileThreads = 8;
constexpr int kThreads = 256;
/// The most blocks along the second and third axis of a grid.
constexpr i64 kMostBlocks = 65535;

/// Squares of kTile by kTile elements, transposed in shared memory where a column's elements are neighbours.
__global__ void copy_dense_kernel(const StoredMatrix* matrices, i64 count, i64 rows, i64 cols, unsigned short* out,
                                  i64 pitch) {
  __shared__ unsigned short square[kTile][kTile + 2];
  const i64 col = static_cast<i64>(blockIdx.x) * kTile;
  const auto x = static_cast<int>(threadIdx.x);
  for (i64 m = blockIdx.z; m < count; m += gridDim.z) {
    const StoredMatrix& matrix = matrices[m];
    for (i64 row = static_cast<i64>(blockIdx.y) * kTile; row < rows; row += static_cast<i64>(gridDim.y) * kTile) {
      const bool turned = stored_row(matrix, row).col_step != 2;
      for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileThreads) {
        const int r = turned ? x : y;
        const int c = turned ? y : x;
        if (row + r >= rows || col + c >= cols) continue;
        const StoredRow stored = stored_row(matrix, row + r);
        square[r][c] = *reinterpret_cast<const unsigned short*>(stored.data + (col + c) * stored.col_step);
      }
      __syncthreads();
      for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kTileThreads)
        if (row + y < rows && col + x < cols) out[(m * rows + row + y) * pitch + col + x] = square[y][x];
      __syncthreads();
    }
  }
}

__global__ void widen_biases_kernel(const StoredMatrix* biases, i64 count, i64 rows, float* out, i64 pitch) {
  for (i64 i = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x; i < count * pitch;
       i += static_cast<i64>(gridDim.x) * kThreads) {
    const StoredMatrix& bias = biases[i / pitch];
    const i64 row = i % pitch;
    const bool there = row < rows && (bias.first.data != nullptr || bias.tail.data != nullptr);
    out[i] = there ? stored_value(stored_row(bias, row).data, bias.dtype) : 0.0F;
  }
}

unsigned blocks(i64 count, i64 each, i64 most) {
  const i64 needed = (count + each - 1) / each;
  return static_cast<unsigned>(needed < most ? needed : most);
}

}  // namespace

void copy_dense(const StoredMatrix* matrices, i64 count, i64 rows, i64 cols, void* out, i64 pitch, GpuStream stream) {
  const dim3 grid(static_cast<unsigned>((cols + kTile - 1) / kTile), blocks(rows, kTile, kMostBlocks),
                  blocks(count, 1, kMostBlocks));
  copy_dense_kernel<<<grid, dim3(kTile, kTileThreads), 0, stream>>>(matrices, count, rows, cols,
                                                                    static_cast<unsigned short*>(out), pitch);
  check_launch("copy_dense", [&] {
    return std::to_string(count) + " of [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
  });
}

void widen_biases(const StoredMatrix* biases, i64 count, i64 rows, float* out, i64 pitch, GpuStream stream) {
  widen_biases_kernel<<<blocks(count * pitch, kThreads, kMostBlocks), kThreads, 0, stream>>>(biases, count, rows, out,
                                                                                             pitch);
  check_launch("widen_biases", [&] { return std::to_string(count) + " of " + std::to_string(rows); });
}

}  // namespace glu_ckpt
