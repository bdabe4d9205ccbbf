/// The layer for many rows an expert, which is bound by arithmetic: C = A B^T in tiles of 128 x 256 a block, clusters
/// of two blocks.
///
/// A block has one warpgroup that loads and two that multiply, 64 rows each; it stays on its multiprocessor and takes
/// one tile after the other, so that loads run ahead while results are written. Two blocks are a cluster: they work on
/// neighbouring rows and the same weights, of which each loads half for both. A result's gate and up sums are in the
/// same thread, because the halves are the lower and the upper 128 columns of one instruction.

#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/epilogue.cuh"
#include "kernels/mlp/tile_scheduler.cuh"

namespace glu_ckpt {
namespace {

constexpr int kStages = 4;
constexpr int kConsumers = 2;
constexpr int kBlockRows = 64 * kConsumers;
constexpr int kThreads = kWarpgroup * (1 + kConsumers);
constexpr int kCluster = 2;
constexpr int kABytes = kBlockRows * kTileRowBytes;
constexpr int kStageBytes = kABytes + 2 * kHalfBytes;
/// A warp's rows of kTileCols columns on their way out; each warp has two such buffers.
constexpr int kSquareBytes = kStoreRows * kTileRowBytes;
constexpr int kOutBytes = kConsumers * 4 * 2 * kSquareBytes;

struct Shared {
  alignas(1024) std::byte stages[kStages][kStageBytes];
  alignas(1024) std::byte out[kOutBytes];
  /// `full`: a stage's bytes have come; `empty`: both blocks have done with it.
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

__device__ void load_tiles(const Sm90Layer& layer, Shared& shared, int tiles_n) {
  const auto rank = static_cast<int>(sm90::cluster_rank());
  TileScheduler scheduler(layer, kBlockRows * kCluster, tiles_n);
  const int steps = (layer.k + kTileCols - 1) / kTileCols;
  PipelineStage<kStages> pipeline;
  const i64 count = scheduler.count();
  for (i64 tile = blockIdx.x / kCluster; tile < count; tile += gridDim.x / kCluster) {
    const LayerTile place = scheduler.at(tile);
    const TmaWeightLoader weights(layer, place, rank);
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int step = 0; step < steps; ++step, pipeline.next()) {
      sm90::barrier_wait(&shared.empty[pipeline.stage], pipeline.parity ^ 1);
      sm90::barrier_expect(&shared.full[pipeline.stage], kStageBytes);
      std::byte* const stage = shared.stages[pipeline.stage];
      sm90::load_tile_2d(stage, &layer.a_map, &shared.full[pipeline.stage], step * kTileCols, row, sm90::kEvictNormal);
      weights.load<true>(stage + kABytes + rank * kHalfBytes, &shared.full[pipeline.stage], step * kTileCols,
                         sm90::kEvictNormal);
    }
  }
  // A block must not end while the other block's copies and arrivals are still to come.
  for (int i = 0; i < kStages; ++i, pipeline.next())
    sm90::barrier_wait(&shared.empty[pipeline.stage], pipeline.parity ^ 1);
}

/// Passes 64 columns of a warp's 16 rows through shared memory, so that a row leaves in one piece. Piece c of row r
/// lies at c ^ r % 8, as TMA reads it; without that all rows' pieces would share their banks. TMA stores the rows where
/// all of them are the expert's; otherwise they are stored one by one.
template <typename Element, typename Value>
__device__ void write_square(const Sm90Layer& layer, std::byte* buffer, i64 row, i64 row_end, int col,
                             const Value& value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t base = sm90::shared_address(buffer);
  const int matrix_row = lane / 8 % 2 * 8 + lane % 8;
  // The other buffer's store may still be under way, this one's is not.
  if (lane == 0) sm90::store_wait_read<1>();
  __syncwarp();
#pragma unroll
  for (int chunk = 0; chunk < kTileCols / 8; chunk += 2) {
    const int piece = (chunk + lane / 16) ^ (lane % 8);
    sm90::store_matrices(base + matrix_row * kTileRowBytes + piece * 16,
                         pack<Element>(value(chunk * 4), value(chunk * 4 + 1)),
                         pack<Element>(value(chunk * 4 + 2), value(chunk * 4 + 3)),
                         pack<Element>(value(chunk * 4 + 4), value(chunk * 4 + 5)),
                         pack<Element>(value(chunk * 4 + 6), value(chunk * 4 + 7)));
  }
  if (layer.wide_stores && row + kStoreRows <= row_end) {
    sm90::publish_shared();
    __syncwarp();
    if (lane == 0) {
      sm90::store_tile_2d(&layer.out_map, buffer, col, static_cast<int>(row));
      sm90::store_commit();
    }
    return;
  }
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const int r = i * 4 + lane / 8;
    const int piece = lane % 8;
    const uint4 words = *reinterpret_cast<const uint4*>(buffer + r * kTileRowBytes + (piece ^ (r % 8)) * 16);
    if (row + r < row_end && col + piece * 8 < layer.n) store_piece<Element>(layer, row + r, col + piece * 8, words);
  }
  // Every square commits a group, an empty one too: the wait above counts groups to know whose buffer is free.
  if (lane == 0) sm90::store_commit();
  __syncwarp();
}

/// Writes a warp's 16 rows of a tile; p are the probabilities of this thread's two rows.
template <typename EpilogueType>
__device__ void write_tile(const Sm90Layer& layer, const LayerTile& place, i64 row, std::byte* buffer,
                           const float (&sums)[128], const float (&p)[2], const EpilogueType& epilogue) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_col = place.n * tile_cols(EpilogueType::kKind);
#pragma unroll
  for (int square = 0; square < tile_cols(EpilogueType::kKind) / kTileCols; ++square) {
    const int col = first_col + square * kTileCols;
    write_square<typename EpilogueType::Element>(
        layer, buffer + square % 2 * kSquareBytes, row, place.row_end, col, [&](int i) {
          constexpr int kEach = kTileCols / 2;
          return epilogue(col + i / 4 * 8 + lane % 4 * 2 + i % 2, sums[square * kEach + i],
                          sums[(64 + square * kEach + i) % 128], p[i / 2 % 2]);
        });
  }
}

template <typename Element, LayerKind kKind>
__device__ void multiply_tiles(const Sm90Layer& layer, Shared& shared, int tiles_n) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto rank = static_cast<int>(sm90::cluster_rank());
  const int own_row = rank * kBlockRows + group * 64 + warp * kStoreRows;
  std::byte* const buffer = shared.out + (group * 4 + warp) * 2 * kSquareBytes;
  TileScheduler scheduler(layer, kBlockRows * kCluster, tiles_n);
  const int steps = (layer.k + kTileCols - 1) / kTileCols;
  // Threads 0 and 1 of a warpgroup arrive at the barriers of blocks 0 and 1.
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const auto release = [&](int stage) {
    if (thread < kCluster) sm90::barrier_arrive_at(&shared.empty[stage], thread);
  };
  PipelineStage<kStages> pipeline;
  const i64 count = scheduler.count();
  const i64 stride = gridDim.x / kCluster;
  i64 tile = blockIdx.x / kCluster;
  LayerTile next = tile < count ? scheduler.at(tile) : LayerTile{};
  while (tile < count) {
    const LayerTile place = next;
    const i64 row = place.row + own_row;
    const float p[2] = {probability<Element, kKind>(layer, row + lane / 4, place.row_end),
                        probability<Element, kKind>(layer, row + lane / 4 + 8, place.row_end)};
    tile += stride;
    float sums[128];
    int last = 0;
    for (int step = 0; step < steps; ++step, pipeline.next()) {
      const std::byte* const stage = shared.stages[pipeline.stage];
      const uint64_t a = sm90::tile_descriptor(stage + group * 64 * kTileRowBytes);
      const uint64_t b = sm90::tile_descriptor(stage + kABytes);
      sm90::barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
      sm90::mma_fence();
#pragma unroll
      for (int k = 0; k < kTileCols / 16; ++k)
        sm90::multiply_add<Element, 256>(sums, a + 2 * k, b + 2 * k, step + k > 0 ? 1 : 0);
      sm90::mma_commit();
      // The step before has ended once this one alone is under way.
      sm90::mma_wait<1>();
      if (step > 0) release(last);
      last = pipeline.stage;
      // The tensor cores are busy meanwhile.
      if (step == 0 && tile < count) next = scheduler.at(tile);
    }
    sm90::mma_wait<0>();
    release(last);
    with_epilogue<Element, kKind>(
        layer, place.expert, [&](const auto& epilogue) { write_tile(layer, place, row, buffer, sums, p, epilogue); });
  }
  if (lane == 0) sm90::store_wait_all();
}

template <typename Element, LayerKind kKind>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_grouped_gemm(const __grid_constant__ Sm90Layer layer, int tiles_n) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    sm90::tensor_map_prefetch(&layer.a_map);
    if (layer.wide_stores) sm90::tensor_map_prefetch(&layer.out_map);
    for (int i = 0; i < kStages; ++i) {
      sm90::barrier_init(&shared.full[i], 1);
      sm90::barrier_init(&shared.empty[i], kConsumers * kCluster);
    }
    sm90::barrier_init_fence();
  }
  sm90::cluster_sync();
  if (threadIdx.x < kWarpgroup) {
    sm90::give_registers<40>();
    if (threadIdx.x == 0) load_tiles(layer, shared, tiles_n);
  } else {
    sm90::take_registers<232>();
    multiply_tiles<Element, kKind>(layer, shared, tiles_n);
  }
#else
  __trap();
#endif
}

template <typename Element, LayerKind kKind>
void launch(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  constexpr int kBytes = static_cast<int>(sizeof(Shared));
  const auto kernel = sm90_grouped_gemm<Element, kKind>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int tiles_n = (layer.n + tile_cols(kKind) - 1) / tile_cols(kKind);
  kernel<<<multiprocessors / kCluster * kCluster, kThreads, kBytes, stream>>>(layer, tiles_n);
}

template <typename Element>
void launch_kind(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  switch (layer.kind) {
    case LayerKind::Gated: return launch<Element, LayerKind::Gated>(layer, multiprocessors, stream);
    case LayerKind::Ungated: return launch<Element, LayerKind::Ungated>(layer, multiprocessors, stream);
    case LayerKind::Linear: return launch<Element, LayerKind::Linear>(layer, multiprocessors, stream);
  }
}

}  // namespace

TileHeight sm90_grouped_gemm_height() { return {kBlockRows, kBlockRows * kCluster}; }

void launch_sm90_grouped_gemm(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  if (layer.dtype == Dtype::BF16)
    launch_kind<__nv_bfloat16>(layer, multiprocessors, stream);
  else
    launch_kind<__half>(layer, multiprocessors, stream);
}

}  // namespace glu_ckpt
