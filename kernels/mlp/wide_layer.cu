/// Layers for many rows an expert, bound by arithmetic: rows times weights, tiles of 128 x 256 a block.
///
/// A block has one warpgroup that loads and two that multiply, 64 rows each; it stays on its multiprocessor and takes
/// one tile after the other, so that loads run ahead while results are written. Two blocks are a cluster: they work on
/// neighbouring rows and the same weights, of which each loads half for both. A result's gate and up sums are in the
/// same thread, because the halves are the lower and the upper 128 columns of one instruction.

#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/matrix_launch.hpp"
#include "kernels/mlp/matrix_tiles.cuh"

namespace glu_ckpt {
namespace {

constexpr int kStages = 4;
constexpr int kConsumers = 2;
constexpr int kBlockRows = 64 * kConsumers;
constexpr int kThreads = kWarpgroup * (1 + kConsumers);
constexpr int kCluster = 2;
constexpr int kLeftBytes = kBlockRows * kTileRowBytes;
constexpr int kStageBytes = kLeftBytes + 2 * kHalfBytes;
/// A warp's rows of kTileCols columns on their way out, of which each warp has two.
constexpr int kSquareBytes = kStoreRows * kTileRowBytes;
constexpr int kOutBytes = kConsumers * 4 * 2 * kSquareBytes;

struct Shared {
  alignas(1024) std::byte stages[kStages][kStageBytes];
  alignas(1024) std::byte out[kOutBytes];
  /// A stage's bytes have come; both blocks have done with it.
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

__device__ void load_tiles(const MatrixLayer& layer, Shared& shared, int tiles_n) {
  const auto rank = static_cast<int>(hopper::cluster_rank());
  TileWalk walk(layer, kBlockRows * kCluster, tiles_n);
  const int steps = (layer.depth + kTileCols - 1) / kTileCols;
  Ring<kStages> ring;
  const i64 count = walk.count();
  for (i64 tile = blockIdx.x / kCluster; tile < count; tile += gridDim.x / kCluster) {
    const LayerTile place = walk.at(tile);
    const HalfLoader weights(layer, place, rank);
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int step = 0; step < steps; ++step, ring.next()) {
      hopper::barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
      hopper::barrier_expect(&shared.full[ring.stage], kStageBytes);
      std::byte* const stage = shared.stages[ring.stage];
      hopper::load_tile_2d(stage, &layer.x, &shared.full[ring.stage], step * kTileCols, row, hopper::kEvictNormal);
      weights.load<true>(stage + kLeftBytes + rank * kHalfBytes, &shared.full[ring.stage], step * kTileCols,
                         hopper::kEvictNormal);
    }
  }
  // A block must not end while the other one's copies and arrivals are still to come.
  for (int i = 0; i < kStages; ++i, ring.next()) hopper::barrier_wait(&shared.empty[ring.stage], ring.parity ^ 1);
}

/// 64 columns of a warp's 16 rows through shared memory, so that a row leaves in one piece. Piece c of row r lies at
/// c ^ r % 8, as the copy engine reads it; without that all rows' pieces would share their banks. Rows that are all the
/// expert's are stored by the copy engine, others one by one.
template <typename Element, typename Value>
__device__ void write_square(const MatrixLayer& layer, std::byte* buffer, i64 row, i64 row_end, int col,
                             const Value& value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t base = hopper::shared_address(buffer);
  const int matrix_row = lane / 8 % 2 * 8 + lane % 8;
  // The other buffer's store may still be under way, this one's is not.
  if (lane == 0) hopper::store_wait_read<1>();
  __syncwarp();
#pragma unroll
  for (int chunk = 0; chunk < kTileCols / 8; chunk += 2) {
    const int piece = (chunk + lane / 16) ^ (lane % 8);
    hopper::store_matrices(base + matrix_row * kTileRowBytes + piece * 16,
                           pack<Element>(value(chunk * 4), value(chunk * 4 + 1)),
                           pack<Element>(value(chunk * 4 + 2), value(chunk * 4 + 3)),
                           pack<Element>(value(chunk * 4 + 4), value(chunk * 4 + 5)),
                           pack<Element>(value(chunk * 4 + 6), value(chunk * 4 + 7)));
  }
  if (layer.wide_stores && row + kStoreRows <= row_end) {
    hopper::publish_shared();
    __syncwarp();
    if (lane == 0) {
      hopper::store_tile_2d(&layer.out_map, buffer, col, static_cast<int>(row));
      hopper::store_commit();
    }
    return;
  }
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const int r = i * 4 + lane / 8;
    const int piece = lane % 8;
    const uint4 words = *reinterpret_cast<const uint4*>(buffer + r * kTileRowBytes + (piece ^ (r % 8)) * 16);
    if (row + r < row_end && col + piece * 8 < layer.cols) store_piece<Element>(layer, row + r, col + piece * 8, words);
  }
  // A group for every square, be it empty: the wait above counts them to know whose buffer is free.
  if (lane == 0) hopper::store_commit();
  __syncwarp();
}

/// A warp's 16 rows of a tile; p are the probabilities of this thread's two.
template <typename Finisher>
__device__ void write_tile(const MatrixLayer& layer, const LayerTile& place, i64 row, std::byte* buffer,
                           const float (&sums)[128], const float (&p)[2], const Finisher& finish) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_col = place.n * tile_cols(Finisher::kKind);
#pragma unroll
  for (int square = 0; square < tile_cols(Finisher::kKind) / kTileCols; ++square) {
    const int col = first_col + square * kTileCols;
    write_square<typename Finisher::Element>(
        layer, buffer + square % 2 * kSquareBytes, row, place.row_end, col, [&](int i) {
          constexpr int kEach = kTileCols / 2;
          return finish(col + i / 4 * 8 + lane % 4 * 2 + i % 2, sums[square * kEach + i],
                        sums[(64 + square * kEach + i) % 128], p[i / 2 % 2]);
        });
  }
}

template <typename Element, LayerKind kKind>
__device__ void multiply_tiles(const MatrixLayer& layer, Shared& shared, int tiles_n) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto rank = static_cast<int>(hopper::cluster_rank());
  const int own_row = rank * kBlockRows + group * 64 + warp * kStoreRows;
  std::byte* const buffer = shared.out + (group * 4 + warp) * 2 * kSquareBytes;
  TileWalk walk(layer, kBlockRows * kCluster, tiles_n);
  const int steps = (layer.depth + kTileCols - 1) / kTileCols;
  // Threads 0 and 1 of a warpgroup tell the blocks 0 and 1.
  const int to_tell = static_cast<int>(threadIdx.x) % kWarpgroup;
  const auto release = [&](int stage) {
    if (to_tell < kCluster) hopper::barrier_arrive_at(&shared.empty[stage], to_tell);
  };
  Ring<kStages> ring;
  const i64 count = walk.count();
  const i64 stride = gridDim.x / kCluster;
  i64 tile = blockIdx.x / kCluster;
  LayerTile next = tile < count ? walk.at(tile) : LayerTile{};
  while (tile < count) {
    const LayerTile place = next;
    const i64 row = place.row + own_row;
    const float p[2] = {probability<Element, kKind>(layer, row + lane / 4, place.row_end),
                        probability<Element, kKind>(layer, row + lane / 4 + 8, place.row_end)};
    tile += stride;
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
      // While the matrix units are busy.
      if (step == 0 && tile < count) next = walk.at(tile);
    }
    hopper::mma_wait<0>();
    release(last);
    with_finish<Element, kKind>(layer, place.expert,
                                [&](const auto& finish) { write_tile(layer, place, row, buffer, sums, p, finish); });
  }
  if (lane == 0) hopper::store_wait_all();
}

template <typename Element, LayerKind kKind>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    wide_layer(const __grid_constant__ MatrixLayer layer, int tiles_n) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    hopper::tensor_map_prefetch(&layer.x);
    if (layer.wide_stores) hopper::tensor_map_prefetch(&layer.out_map);
    for (int i = 0; i < kStages; ++i) {
      hopper::barrier_init(&shared.full[i], 1);
      hopper::barrier_init(&shared.empty[i], kConsumers * kCluster);
    }
    hopper::barrier_init_fence();
  }
  hopper::cluster_sync();
  if (threadIdx.x < kWarpgroup) {
    hopper::give_registers<40>();
    if (threadIdx.x == 0) load_tiles(layer, shared, tiles_n);
  } else {
    hopper::take_registers<232>();
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
