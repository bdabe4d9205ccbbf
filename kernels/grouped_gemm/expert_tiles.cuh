#pragma once
/// One block scans the splits, a chunk of them at a time: rows and tiles together. Whether a split is wrong is known
/// only behind the last one, so a wrong one makes the block clear what it stored.

#include "kernels/common/launch_order.cuh"
#include "kernels/grouped_gemm/expert_tiles.hpp"

namespace glu_ckpt::schedule {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;
inline constexpr int kMaxThreads = 1024;

struct Sums {
  u64 rows;
  i32 tiles;
};

/// Sum over this lane and those below it. Rows wrap at 64 bits.
__device__ inline Sums warp_prefix(Sums sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (unsigned step = 1; step < kWarp; step *= 2) {
    const u64 rows = __shfl_up_sync(kAllLanes, sums.rows, step);
    const i32 tiles = __shfl_up_sync(kAllLanes, sums.tiles, step);
    if (lane >= static_cast<int>(step)) sums = {sums.rows + rows, sums.tiles + tiles};
  }
  return sums;
}

/// Returns the sum over the threads up to this one of the whole block; `total` gets the sum over all its threads.
__device__ inline Sums block_prefix(Sums sums, Sums& total) {
  __shared__ Sums warp_totals[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Sums within = warp_prefix(sums);
  if (lane == kWarp - 1) warp_totals[warp] = within;
  __syncthreads();
  Sums before = {0, 0};
  total = {0, 0};
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    if (w == warp) before = total;
    total = {total.rows + warp_totals[w].rows, total.tiles + warp_totals[w].tiles};
  }
  // The next chunk's totals go to the same place.
  __syncthreads();
  return {before.rows + within.rows, before.tiles + within.tiles};
}

static __global__ void __launch_bounds__(kMaxThreads)
    expert_tiles_kernel(const i64* splits, i32 num_experts, i64 rows, i32 tile_rows, ExpertTiles tiles) {
  __shared__ i32 first_wrong;
  let_next_launch_begin();
  wait_for_launch_before();
  const auto thread = static_cast<i32>(threadIdx.x);
  const auto threads = static_cast<i32>(blockDim.x);
  if (thread == 0) {
    first_wrong = num_experts;
    tiles.first_row[0] = 0;
    tiles.first_tile[0] = 0;
  }
  __syncthreads();
  Sums carried = {0, 0};
  // The first wrong split of this thread's.
  i32 wrong = num_experts;
  SplitStatus status{};
  for (i32 chunk = 0; chunk < num_experts; chunk += threads) {
    const i32 expert = chunk + thread;
    const i64 split = expert < num_experts ? splits[expert] : 0;
    // A split beyond all rows could make more tiles than i32 counts; it is wrong anyway.
    const bool alone_wrong = split < 0 || split > rows;
    const auto own_tiles = alone_wrong ? 0 : static_cast<i32>(split / tile_rows + (split % tile_rows != 0 ? 1 : 0));
    Sums total{};
    const Sums own = block_prefix({static_cast<u64>(split), own_tiles}, total);
    const u64 end = carried.rows + own.rows;
    if (expert < num_experts) {
      // Up to the first wrong split sums are at most `rows`, so one more does not wrap beyond 2^64.
      if (wrong == num_experts && (split < 0 || end > static_cast<u64>(rows))) {
        wrong = expert;
        status = {split < 0 ? SplitFault::Negative : SplitFault::TooMany, expert, split,
                  static_cast<i64>(end - static_cast<u64>(split)), rows};
      }
      tiles.first_row[expert + 1] = static_cast<i64>(end);
      tiles.first_tile[expert + 1] = carried.tiles + own.tiles;
      tiles.written[expert] = 0;
    }
    carried = {carried.rows + total.rows, carried.tiles + total.tiles};
  }
  if (thread < ExpertTiles::kTakers) tiles.taken[thread] = 0;
  if (wrong < num_experts) atomicMin(&first_wrong, wrong);
  __syncthreads();
  if (first_wrong == num_experts) {
    if (thread == 0) *tiles.status = SplitStatus{};
    return;
  }
  if (wrong == first_wrong) *tiles.status = status;
  for (i32 expert = thread; expert < num_experts; expert += threads) {
    tiles.first_row[expert + 1] = 0;
    tiles.first_tile[expert + 1] = 0;
  }
}

}  // namespace glu_ckpt::schedule
