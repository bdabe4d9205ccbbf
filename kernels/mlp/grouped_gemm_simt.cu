/// A block makes 64 rows by 64 columns of the result, a thread 4 by 4 of them. Weights of any layout are widened to
/// fp32 on the way to shared memory, so the sums do not depend on it: they take kStep products one after the other,
/// then those sums one after the other, which keeps fp32's error at about that of sqrt(K / kStep) additions.

#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/stored_element.cuh"

namespace glu_ckpt {
namespace {

constexpr int kTile = kSimtTileRows;
constexpr int kStep = 16;
constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;
constexpr int kEach = kTile / kSide;

/// Tiles of [kTile rows, kStep columns], widened; one more column, so that rows begin in banks of their own.
struct Shared {
  float a[kTile][kStep + 1];
  float weights[2][kTile][kStep + 1];
  StoredRow rows[2][kTile];
};

/// Rows of one weight's tile, columns from `col`; those that are not there are 0.
__device__ void load_weights(const SimtLayer& layer, Shared& shared, int which, Dtype dtype, int first, int col) {
  // Neighbouring threads take neighbouring bytes: of a row, or of a column where the matrix is transposed.
  const i64 element_bytes = dtype == Dtype::F32 ? 4 : 2;
  const bool along_rows = shared.rows[which][0].col_step == element_bytes;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kStep; i += kThreads) {
    const int r = along_rows ? i / kStep : i % kTile;
    const int c = along_rows ? i % kStep : i / kTile;
    const StoredRow row = shared.rows[which][r];
    const bool there = first + r < layer.n && col + c < layer.k;
    shared.weights[which][r][c] = there ? stored_value(row.data + (col + c) * row.col_step, dtype) : 0.0F;
  }
}

template <typename Element>
__device__ void load_a(const SimtLayer& layer, Shared& shared, i64 row, i64 row_end, int col) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kStep; i += kThreads) {
    const int r = i / kStep;
    const int c = i % kStep;
    const bool there = row + r < row_end && col + c < layer.k;
    shared.a[r][c] = there ? widen(static_cast<const Element*>(layer.a)[(row + r) * layer.a_pitch + col + c]) : 0.0F;
  }
}

template <typename Element, LayerKind kKind>
__global__ void __launch_bounds__(kThreads) grouped_gemm_simt(const __grid_constant__ SimtLayer layer) {
  constexpr int kWeights = kKind == LayerKind::Gated ? 2 : 1;
  __shared__ Shared shared;
  const auto tile = static_cast<i32>(blockIdx.x);
  if (tile >= layer.tiles.first_tile[layer.experts]) return;
  const i32 expert = expert_of_tile(layer.tiles.first_tile, layer.experts, tile);
  const i64 row = layer.tiles.first_row[expert] + static_cast<i64>(tile - layer.tiles.first_tile[expert]) * kTile;
  const i64 row_end = layer.tiles.first_row[expert + 1];
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const StoredMatrix* const weights = layer.weights + 2 * expert;
  for (int i = static_cast<int>(threadIdx.x); i < kWeights * kTile; i += kThreads)
    shared.rows[i / kTile][i % kTile] =
        stored_row(weights[i / kTile], first + i % kTile < layer.n ? first + i % kTile : 0);
  __syncthreads();
  const int x = static_cast<int>(threadIdx.x) % kSide;
  const int y = static_cast<int>(threadIdx.x) / kSide;
  float sums[kWeights][kEach][kEach] = {};
  for (int col = 0; col < layer.k; col += kStep) {
    load_a<Element>(layer, shared, row, row_end, col);
#pragma unroll
    for (int w = 0; w < kWeights; ++w) load_weights(layer, shared, w, weights[w].dtype, first, col);
    __syncthreads();
    float part[kWeights][kEach][kEach] = {};
#pragma unroll
    for (int k = 0; k < kStep; ++k)
#pragma unroll
      for (int w = 0; w < kWeights; ++w)
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int j = 0; j < kEach; ++j)
            part[w][i][j] = fmaf(shared.a[y + kSide * i][k], shared.weights[w][x + kSide * j][k], part[w][i][j]);
#pragma unroll
    for (int w = 0; w < kWeights; ++w)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[w][i][j] += part[w][i][j];
    __syncthreads();
  }
  with_epilogue<Element, kKind>(layer, expert, [&](const auto& epilogue) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const i64 r = row + y + kSide * i;
      if (r >= row_end) continue;
      const float p = probability<Element, kKind>(layer, r, row_end);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int c = first + x + kSide * j;
        if (c >= layer.n) continue;
        const auto store = [&](const RowsOut& out, float value) {
          static_cast<Element*>(out.data)[r * out.pitch + c] = narrow<Element>(value);
        };
        store(layer.out, epilogue(c, sums[0][i][j], sums[kWeights - 1][i][j], p));
        if (kKind == LayerKind::Linear || layer.z[1].data == nullptr) continue;
        if constexpr (kKind == LayerKind::Gated)
          store(layer.z[0], epilogue.template pre_activation<0>(c, sums[0][i][j]));
        store(layer.z[1], epilogue.template pre_activation<kWeights - 1>(c, sums[kWeights - 1][i][j]));
      }
    }
  });
}

template <typename Element>
void launch_kind(const SimtLayer& layer, dim3 grid, GpuStream stream) {
  switch (layer.kind) {
    case LayerKind::Gated: return grouped_gemm_simt<Element, LayerKind::Gated><<<grid, kThreads, 0, stream>>>(layer);
    case LayerKind::Ungated:
      return grouped_gemm_simt<Element, LayerKind::Ungated><<<grid, kThreads, 0, stream>>>(layer);
    case LayerKind::Linear: return grouped_gemm_simt<Element, LayerKind::Linear><<<grid, kThreads, 0, stream>>>(layer);
  }
}

}  // namespace

void launch_grouped_gemm_simt(const SimtLayer& layer, i64 rows, GpuStream stream) {
  const dim3 grid(static_cast<unsigned>(max_expert_tiles(rows, layer.experts, kTile)),
                  static_cast<unsigned>((layer.n + kTile - 1) / kTile));
  switch (layer.dtype) {
    case Dtype::BF16: launch_kind<__nv_bfloat16>(layer, grid, stream); break;
    case Dtype::F16: launch_kind<__half>(layer, grid, stream); break;
    default: launch_kind<float>(layer, grid, stream); break;
  }
  check_launch("grouped_gemm_simt", [&] {
    return std::to_string(rows) + " rows, K " + std::to_string(layer.k) + ", N " + std::to_string(layer.n);
  });
}

}  // namespace glu_ckpt
