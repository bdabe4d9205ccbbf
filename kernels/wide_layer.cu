/// Layers for many rows an expert, bound by arithmetic: rows times weights, tiles of 128 x 256 a block.
///
/// A block has one warpgroup that loads and two that multiply, 64 rows each; it stays on its multiprocessor and takes
/// one tile after the other, so that loads run ahead while results are written. Two blocks are a cluster: they work on
/// neighbouring rows and the same weights, of which each loads half for both. A result's gate and up sums are in the
/// same thread, because the halves are the lower and the upper 128 columns of one instruction.

#include "kernels/cuda_check.hpp"
#include "kernels/matrix_launch.hpp"
#include "kernels/matrix_tiles.cuh"

namespace glu_ckpt {
namespace {

constexpr int kStages = 4;
constexpr int kConsumers = 2;
constexpr int kBlockRows = 64 * kConsumers;
constexpr int kThreads = kWarpgroup * (1 + kConsumers);
constexpr int kCluster = 2;
constexpr int kLeftBytes = kBlockRows * kTileRowBytes;
constexpr int kStageBytes = kLeftBytes + 2 * kHalfBytes;
/// A warp's 16 rows of 128 columns on their way out.
constexpr int kOutRowBytes = kHalfRows * 2;
constexpr int kOutBytes = kConsumers * 64 * kOutRowBytes;

struct Shared {
  alignas(1024) std::byte stages[kStages][kStageBytes];
  alignas(1024) std::byte out[kOutBytes];
  /// A stage's bytes have come; both blocks have done with it.
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

/// Which stage, and the parity of its phase.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ void load_tiles(const MatrixLayer& layer, Shared& shared, int tiles_n) {
  const auto rank = static_cast<int>(hopper::cluster_rank());
  TileWalk walk(layer, kBlockRows * kCluster, tiles_n);
  const int steps = (layer.depth + kTileCols - 1) / kTileCols;
  Ring ring;
  const i64 count = walk.count();
  for (i64 tile = blockIdx.x / kCluster; tile < count; tile += gridDim.x / kCluster) {
    const TilePlace place = walk.at(tile);
    const HalfLoader weights(layer, place, rank);
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int step = 0; step < steps; ++step, ring.next()) {
      hopper::barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
      hopper::barrier_expect(&shared.full[ring.stage], kStageBytes);
      std::byte* const stage = shared.stages[ring.stage];
      hopper::load_tile_2d(stage, &layer.x, &shared.full[ring.stage], step * kTileCols, row, hopper::kEvictLast);
      weights.load<true>(stage + kLeftBytes + rank * kHalfBytes, &shared.full[ring.stage], step * kTileCols,
                         hopper::kEvictLast);
    }
  }
  // A block must not end while the other one's copies and arrivals are still to come.
  for (int i = 0; i < kStages; ++i, ring.next()) hopper::barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
}

/// 128 columns of a warp's 16 rows through shared memory, so that a row leaves in pieces of 16 bytes side by side.
/// Piece c of row r lies at c ^ r % 8, without which all rows' pieces would share their banks.
template <typename Element, typename Value>
__device__ void write_rows(const MatrixLayer& layer, std::byte* buffer, i64 row, i64 row_end, int col,
                           const Value& value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t base = hopper::shared_address(buffer);
  const int matrix_row = lane / 8 % 2 * 8 + lane % 8;
  __syncwarp();
#pragma unroll
  for (int chunk = 0; chunk < kHalfRows / 8; chunk += 2) {
    const int piece = (chunk + lane / 16) ^ (lane % 8);
    hopper::store_matrices(base + matrix_row * kOutRowBytes + piece * 16,
                           pack<Element>(value(chunk * 4), value(chunk * 4 + 1)),
                           pack<Element>(value(chunk * 4 + 2), value(chunk * 4 + 3)),
                           pack<Element>(value(chunk * 4 + 4), value(chunk * 4 + 5)),
                           pack<Element>(value(chunk * 4 + 6), value(chunk * 4 + 7)));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int r = i * 2 + lane / 16;
    const int piece = lane % 16;
    const uint4 words = *reinterpret_cast<const uint4*>(buffer + r * kOutRowBytes + (piece ^ (r % 8)) * 16);
    if (row + r < row_end && col + piece * 8 < layer.cols) store_piece<Element>(layer, row + r, col + piece * 8, words);
  }
}

template <typename Element, LayerKind kKind>
__device__ void write_tile(const MatrixLayer& layer, const TilePlace& place, i64 row, std::byte* buffer,
                           const float (&sums)[128]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float p[2] = {probability<Element, kKind>(layer, row + lane / 4, place.row_end),
                      probability<Element, kKind>(layer, row + lane / 4 + 8, place.row_end)};
  const int first_col = place.n * tile_cols(kKind);
#pragma unroll
  for (int half = 0; half < tile_cols(kKind) / kHalfRows; ++half) {
    const int col = first_col + half * kHalfRows;
    write_rows<Element>(layer, buffer, row, place.row_end, col, [&](int i) {
      return finish<Element, kKind>(layer, place.expert, col + i / 4 * 8 + lane % 4 * 2 + i % 2, sums[half * 64 + i],
                                    sums[64 + i], p[i / 2 % 2]);
    });
  }
}

template <typename Element, LayerKind kKind>
__device__ void multiply_tiles(const MatrixLayer& layer, Shared& shared, int tiles_n) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const auto rank = static_cast<int>(hopper::cluster_rank());
  std::byte* const buffer = shared.out + (group * 4 + warp) * 16 * kOutRowBytes;
  TileWalk walk(layer, kBlockRows * kCluster, tiles_n);
  const int steps = (layer.depth + kTileCols - 1) / kTileCols;
  // Threads 0 and 1 of a warpgroup tell the blocks 0 and 1.
  const int to_tell = static_cast<int>(threadIdx.x) % kWarpgroup;
  const auto release = [&](int stage) {
    if (to_tell < kCluster) hopper::barrier_arrive_at(&shared.empty[stage], to_tell);
  };
  Ring ring;
  const i64 count = walk.count();
  for (i64 tile = blockIdx.x / kCluster; tile < count; tile += gridDim.x / kCluster) {
    const TilePlace place = walk.at(tile);
    float sums[128];
    int last = 0;
    for (int step = 0; step < steps; ++step, ring.next()) {
      const std::byte* const stage = shared.stages[ring.stage];
      const uint64_t left = hopper::tile_descriptor(stage + group * 64 * kTileRowBytes);
      const uint64_t right = hopper::tile_descriptor(stage + kLeftBytes);
      hopper::barrier_wait(&shared.full[ring.stage], ring.parity);
      hopper::mma_fence();
#pragma unroll
      for (int k = 0; k < kTileCols / 16; ++k)
        hopper::multiply_add<Element, 256>(sums, left + 2 * k, right + 2 * k, step + k > 0 ? 1 : 0);
      hopper::mma_commit();
      // The step before has ended once this one alone is under way.
      hopper::mma_wait<1>();
      if (step > 0) release(last);
      last = ring.stage;
    }
    hopper::mma_wait<0>();
    release(last);
    write_tile<Element, kKind>(layer, place, place.row + rank * kBlockRows + group * 64 + warp * 16, buffer, sums);
  }
}

template <typename Element, LayerKind kKind>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    wide_layer(const __grid_constant__ MatrixLayer layer, int tiles_n) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    hopper::tensor_map_prefetch(&layer.x);
    for (int i = 0; i < kStages; ++i) {
      hopper::barrier_init(&shared.full[i], 1);
      hopper::barrier_init(&shared.empty[i], kConsumers * kCluster);
    }
    hopper::barrier_init_fence();
  }
  hopper::cluster_sync();
  if (threadIdx.x < kWarpgroup) {
    hopper::give_registers<24>();
    if (threadIdx.x == 0) load_tiles(layer, shared, tiles_n);
  } else {
    hopper::take_registers<240>();
    multiply_tiles<Element, kKind>(layer, shared, tiles_n);
  }
#else
  __trap();
#endif
}

template <typename Element, LayerKind kKind>
void launch(const MatrixLayer& layer, int multiprocessors, GpuStream stream) {
  constexpr int kBytes = static_cast<int>(sizeof(Shared));
  const auto kernel = wide_layer<Element, kKind>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int tiles_n = (layer.cols + tile_cols(kKind) - 1) / tile_cols(kKind);
  kernel<<<multiprocessors / kCluster * kCluster, kThreads, kBytes, stream>>>(layer, tiles_n);
}

template <typename Element>
void launch_kind(const MatrixLayer& layer, int multiprocessors, GpuStream stream) {
  switch (layer.kind) {
    case LayerKind::Gated: return launch<Element, LayerKind::Gated>(layer, multiprocessors, stream);
    case LayerKind::Ungated: return launch<Element, LayerKind::Ungated>(layer, multiprocessors, stream);
    case LayerKind::Linear: return launch<Element, LayerKind::Linear>(layer, multiprocessors, stream);
  }
}

}  // namespace

TileHeight wide_height() { return {kBlockRows, kBlockRows * kCluster}; }

void launch_wide_layer(const MatrixLayer& layer, int multiprocessors, GpuStream stream) {
  if (layer.dtype == Dtype::BF16)
    launch_kind<__nv_bfloat16>(layer, multiprocessors, stream);
  else
    launch_kind<__half>(layer, multiprocessors, stream);
}

}  // namespace glu_ckpt
