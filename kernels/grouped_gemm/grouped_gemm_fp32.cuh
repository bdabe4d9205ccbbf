#pragma once
/// The grouped linear layer in fp32, without tensor cores, which would round the operands: each sum is one chain of
/// fused multiply-adds, k from first to last, as grouped_linear_host() makes it.

#include "kernels/grouped_gemm/linear_launch.hpp"

namespace glu_ckpt::linear {

/// An operand's part of a tile: element (mn, k) is first[mn * mn_step + k * k_step].
struct SimtWindow {
  const float* first;
  i64 mn_step;
  i64 k_step;
  i64 mn;
};

/// kSimtTile by kSimtDepth elements on their way from device memory to shared memory, in registers.
template <Along kAlong>
class SimtTile {
  static constexpr int kEach = kSimtTile * kSimtDepth / kSimtThreads;

 public:
  /// Consecutive threads read consecutive addresses.
  static __device__ MatrixPoint point(int i) {
    const i32 index = static_cast<i32>(threadIdx.x) + i * kSimtThreads;
    if constexpr (kAlong == Along::K) return {index / kSimtDepth, index % kSimtDepth};
    return {index % kSimtTile, index / kSimtTile};
  }

  __device__ void read(const SimtWindow& window, i64 first_k, i64 k) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const MatrixPoint at = point(i);
      const bool there = at.mn < window.mn && first_k + at.k < k;
      values_[i] = there ? window.first[at.mn * window.mn_step + (first_k + at.k) * window.k_step] : 0.0F;
    }
  }

  template <typename Shared>
  __device__ void store(Shared& shared) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const MatrixPoint at = point(i);
      shared[at.k][at.mn] = values_[i];
    }
  }

 private:
  float values_[kEach];
};

struct SimtWork {
  SimtWindow a, b;
  float* c;
  i64 rows, cols;
  i64 k;
};

template <Along kB>
__device__ SimtWork simt_by_rows(const LinearOperands& args, const TilePlace& place) {
  const i64 first = args.tiles.first_row[place.expert] + i64{place.m} * kSimtTile;
  const i64 rows = args.tiles.first_row[place.expert + 1] - first;
  const i64 col = i64{place.n} * kSimtTile;
  const auto* const b = static_cast<const float*>(args.matrices[place.expert]);
  SimtWork work{};
  work.a = {static_cast<const float*>(args.a) + first * args.k, args.k, 1, rows};
  work.b = kB == Along::K ? SimtWindow{b + col * args.k, args.k, 1, args.n - col}
                          : SimtWindow{b + col, 1, args.n, args.n - col};
  work.c = static_cast<float*>(args.c) + (first * args.n + col);
  work.rows = rows;
  work.cols = args.n - col;
  work.k = args.k;
  return work;
}

__device__ inline SimtWork simt_by_experts(const LinearOperands& args, const TilePlace& place) {
  const i64 first = args.tiles.first_row[place.expert];
  const i64 rows = args.tiles.first_row[place.expert + 1] - first;
  const i64 row = i64{place.m} * kSimtTile;
  const i64 col = i64{place.n} * kSimtTile;
  SimtWork work{};
  work.a = {static_cast<const float*>(args.a) + (first * args.m + row), 1, args.m, args.m - row};
  work.b = {static_cast<const float*>(args.b) + (first * args.n + col), 1, args.n, args.n - col};
  work.c = static_cast<float*>(const_cast<void*>(args.matrices[place.expert])) + (row * args.n + col);
  work.rows = args.m - row;
  work.cols = args.n - col;
  work.k = rows;
  return work;
}

template <Along kA, Along kB>
__device__ void simt_multiply(const SimtWork& work, float (&sums)[4][4]) {
  // Rows have four elements more: rows stay aligned for 16 bytes, and a column's elements fall into different banks.
  __shared__ __align__(16) float a_tile[kSimtDepth][kSimtTile + 4];
  __shared__ __align__(16) float b_tile[kSimtDepth][kSimtTile + 4];
  const int row = static_cast<int>(threadIdx.x) / 16 * 4;
  const int col = static_cast<int>(threadIdx.x) % 16 * 4;
  SimtTile<kA> a;
  SimtTile<kB> b;
  a.read(work.a, 0, work.k);
  b.read(work.b, 0, work.k);
  for (i64 first_k = 0; first_k < work.k; first_k += kSimtDepth) {
    a.store(a_tile);
    b.store(b_tile);
    __syncthreads();
    a.read(work.a, first_k + kSimtDepth, work.k);
    b.read(work.b, first_k + kSimtDepth, work.k);
#pragma unroll
    for (int k = 0; k < kSimtDepth; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(&a_tile[k][row]);
      const float4 y = *reinterpret_cast<const float4*>(&b_tile[k][col]);
      const float xs[4] = {x.x, x.y, x.z, x.w};
      const float ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = __fmaf_rn(xs[i], ys[j], sums[i][j]);
    }
    __syncthreads();
  }
}

/// The product is by experts (NT) where A is dense along m.
template <Along kA, Along kB>
__global__ void __launch_bounds__(kSimtThreads) grouped_gemm_fp32(const __grid_constant__ LinearOperands args, bool) {
  constexpr bool kByExperts = kA == Along::Mn;
  const auto block = static_cast<i32>(blockIdx.x);
  const auto n_tiles = static_cast<i32>((args.n + kSimtTile - 1) / kSimtTile);
  SimtWork work{};
  if constexpr (kByExperts) {
    if (args.tiles.status->fault != SplitFault::None) return;
    const auto m_tiles = static_cast<i32>((args.m + kSimtTile - 1) / kSimtTile);
    work = simt_by_experts(args, place_by_experts(m_tiles, n_tiles, block));
    if (args.accumulate && work.k == 0) return;
  } else {
    const TilePlace place = place_by_rows(args.tiles.first_tile, args.num_experts, n_tiles, block);
    if (place.expert < 0) return;
    work = simt_by_rows<kB>(args, place);
  }
  float sums[4][4] = {};
  simt_multiply<kA, kB>(work, sums);
  const int first_row = static_cast<int>(threadIdx.x) / 16 * 4;
  const int first_col = static_cast<int>(threadIdx.x) % 16 * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (first_row + i >= work.rows || first_col + j >= work.cols) continue;
      float* const out = work.c + (first_row + i) * args.n + first_col + j;
      // The zeros behind the last k may have turned -0 into 0 already; so that is done to every sum.
      const float sum = __fadd_rn(sums[i][j], 0.0F);
      *out = kByExperts && args.accumulate ? __fadd_rn(sum, *out) : sum;
    }
}

}  // namespace glu_ckpt::linear
