#pragma once
/// The three products of the backward and those of the forward share this: blocks in which one thread loads and two
/// warpgroups multiply, and the stages of shared memory between them. Two blocks are a cluster, but where an expert has
/// few rows. Blocks stay on their multiprocessors and take one tile after the other.
///
/// Weights lie transposed for the backward's products, and of a weight gradient both operands do: they are read as they
/// lie, in squares of 64 x 64 whose rows follow one another along K, which WGMMA takes for 16-bit elements.

#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/sm90_backward.hpp"
#include "kernels/mlp/tile_scheduler.cuh"
#include "kernels/mlp/write_square.cuh"

namespace glu_ckpt::sm90 {

inline constexpr int kThreads = kWarpgroup * (1 + kConsumers);
/// The rows of a block's tile.
inline constexpr int kBlockRows = 64 * kConsumers;
inline constexpr int kABytes = kBlockRows * kTileRowBytes;
static_assert(kBlockRows * kCluster == kBackwardTileRows && kBlockRows == kBackwardBoxRows);
static_assert(kABytes == 2 * kChunkBytes && kChunkBytes == kDepthRows * kTileRowBytes);

/// The stages of a block. kNumSquares are those of a warp, for results on their way out; kNumReleases are the arrivals
/// that give a stage back.
template <int kNumStages, int kNumStageBytes, int kNumSquares, int kNumReleases>
struct BlockStages {
  static constexpr int kStages = kNumStages;
  static constexpr int kStageBytes = kNumStageBytes;
  static constexpr int kSquares = kNumSquares;
  alignas(1024) std::byte stages[kStages][kStageBytes];
  alignas(1024) std::byte out[kSquares > 0 ? kConsumers * 4 * kSquares* kSquareBytes : 1024];
  /// `full`: a stage's bytes have come; `empty`: both blocks have done with it.
  uint64_t full[kStages];
  uint64_t empty[kStages];

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kNumReleases);
    }
  }

  /// Returns where the results of a warp wait for TMA.
  __device__ std::byte* out_of(int group, int warp) { return out + (group * 4 + warp) * kSquares * kSquareBytes; }
};

/// A multiplying thread's place.
struct Worker {
  int group, warp, lane, thread, rank;
  __device__ Worker()
      : group(warp_in_block() / 4 - 1),
        warp(warp_in_block() % 4),
        lane(static_cast<int>(threadIdx.x) % 32),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        rank(static_cast<int>(cluster_rank())) {}

  /// The warp's first row of the cluster's tile, and of the block's.
  __device__ int row() const { return rank * kBlockRows + block_row(); }
  __device__ int block_row() const { return group * 64 + warp * kStoreRows; }

  /// Threads 0 and 1 of a warpgroup arrive at the barriers of blocks 0 and 1.
  template <typename SharedType>
  __device__ void release(SharedType& shared, int stage) const {
    if (thread < kCluster) barrier_arrive_at(&shared.empty[stage], static_cast<uint32_t>(thread));
  }
};

constexpr int tiles_of(int size, int tile) { return (size + tile - 1) / tile; }

/// Prepares the barriers, and gives the roles to the warpgroups. A thread beside the loading one calls `schedule`. It
/// is inlined, so that `multiply` can be.
template <typename SharedType, typename Load, typename Multiply, typename Schedule>
__device__ __forceinline__ void run_block(SharedType& shared, const Load& load, const Multiply& multiply,
                                          const Schedule& schedule) {
  if (threadIdx.x == 0) {
    shared.init();
    barrier_init_fence();
  }
  cluster_sync();
  if (threadIdx.x < kWarpgroup) {
    give_registers<40>();
    if (warp_in_block() == 0 && is_elected()) load();
    if (warp_in_block() == 1 && is_elected()) schedule();
  } else {
    take_registers<232>();
    multiply();
  }
}
template <typename SharedType, typename Load, typename Multiply>
__device__ __forceinline__ void run_block(SharedType& shared, const Load& load, const Multiply& multiply) {
  run_block(shared, load, multiply, [] {});
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define GLU_HOPPER_ONLY(body) body
#else
#define GLU_HOPPER_ONLY(body) __trap()
#endif

template <typename SharedType, typename Job>
void launch(void (*kernel)(Job, int), const char* name, const Job& job, int tiles_n, int multiprocessors,
            GpuStream stream) {
  constexpr int kBytes = static_cast<int>(sizeof(SharedType));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<static_cast<unsigned>(multiprocessors / kCluster * kCluster), kThreads, kBytes, stream>>>(job, tiles_n);
  check_launch(name, [&] {
    return std::to_string(job.args.experts) + " experts, " + std::to_string(job.args.rows) + " rows, H " +
           std::to_string(job.args.hidden) + ", F " + std::to_string(job.args.width);
  });
}

}  // namespace glu_ckpt::sm90
