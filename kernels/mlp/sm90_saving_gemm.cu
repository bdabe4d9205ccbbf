/// FC1 for many rows an expert where it saves z: C = A B^T in tiles of 128 x 256 a block, clusters of two blocks.
/// Beside the 192 sums of sm90_grouped_gemm.cu a thread has no registers for three results of each.
///
/// A block has one warpgroup that loads and two that multiply, 64 rows each; it stays on its multiprocessor and takes
/// one tile after the other, so that loads run ahead while results are written. Two blocks are a cluster: they work on
/// neighbouring rows and the same weights, of which each loads half for both. A result's gate and up sums are in the
/// same thread, because the halves are the lower and the upper 128 columns of one instruction.

#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/tile_scheduler.cuh"
#include "kernels/mlp/write_square.cuh"

namespace glu_ckpt {
namespace {

constexpr int kStages = 4;
constexpr int kConsumers = 2;
constexpr int kBlockRows = 64 * kConsumers;
constexpr int kThreads = kWarpgroup * (1 + kConsumers);
constexpr int kCluster = 2;
constexpr int kABytes = kBlockRows * kTileRowBytes;
constexpr int kHalfBytes = kHalfRows * kTileRowBytes;
constexpr int kStageBytes = kABytes + 2 * kHalfBytes;
/// Each warp has two squares of results on their way out.
constexpr int kOutBytes = kConsumers * 4 * 2 * kSquareBytes;

struct Shared {
  alignas(1024) std::byte stages[kStages][kStageBytes];
  alignas(1024) std::byte out[kOutBytes];
  /// `full`: a stage's bytes have come; `empty`: both blocks have done with it.
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

__device__ void load_tiles(const Sm90Layer& layer, Shared& shared, int tiles_n) {
  begin_layer(layer);
  const auto rank = static_cast<int>(sm90::cluster_rank());
  TileScheduler scheduler(layer.tiles, layer.experts, kBlockRows * kCluster, tiles_n);
  const int steps = (layer.k + kTileCols - 1) / kTileCols;
  PipelineStage<kStages> pipeline;
  const i64 count = scheduler.count();
  i64 tile = blockIdx.x / kCluster;
  LayerTile place = tile < count ? scheduler.at(tile) : LayerTile{};
  TmaWeightLoader<kHalfRows> weights(layer, place, rank);
  while (tile < count) {
    weights.open();
    // The next tile is looked up while this one's stages are under way.
    tile += gridDim.x / kCluster;
    const LayerTile next_place = tile < count ? scheduler.at(tile) : place;
    const TmaWeightLoader<kHalfRows> next_weights(layer, next_place, rank);
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int step = 0; step < steps; ++step, pipeline.next()) {
      sm90::barrier_wait(&shared.empty[pipeline.stage], pipeline.parity ^ 1);
      sm90::barrier_expect(&shared.full[pipeline.stage], kStageBytes);
      std::byte* const stage = shared.stages[pipeline.stage];
      sm90::load_tile_2d(stage, &layer.a_map, &shared.full[pipeline.stage], step * kTileCols, row, sm90::kEvictNormal);
      weights.load<true>(stage + kABytes + rank * kHalfBytes, &shared.full[pipeline.stage], step * kTileCols,
                         sm90::kEvictNormal);
    }
    place = next_place;
    weights = next_weights;
  }
  // A block must not end while the other block's copies and arrivals are still to come.
  for (int i = 0; i < kStages; ++i, pipeline.next())
    sm90::barrier_wait(&shared.empty[pipeline.stage], pipeline.parity ^ 1);
}

/// Writes a warp's 16 rows of a tile; p are the probabilities of this thread's two rows.
template <typename EpilogueType>
__device__ void write_tile(const Sm90Layer& layer, const LayerTile& place, i64 row, std::byte* buffer,
                           const float (&sums)[128], const float (&p)[2], const EpilogueType& epilogue) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr LayerKind kKind = EpilogueType::kKind;
  constexpr int kEach = kTileCols / 2;
  using Element = typename EpilogueType::Element;
  const int first_col = place.n * tile_cols(kKind, kHalfRows);
#pragma unroll
  for (int square = 0; square < tile_cols(kKind, kHalfRows) / kTileCols; ++square) {
    const int col = first_col + square * kTileCols;
    const auto col_of = [&](int i) { return col + i / 4 * 8 + lane % 4 * 2 + i % 2; };
    write_square<Element>(
        {layer.out, &layer.out_map, layer.n}, buffer + square % 2 * kSquareBytes, row, place.row_end, col, [&](int i) {
          return epilogue(col_of(i), sums[square * kEach + i], sums[(64 + square * kEach + i) % 128], p[i / 2 % 2]);
        });
  }
#pragma unroll
  for (int square = 0; square < tile_cols(kKind, kHalfRows) / kTileCols; ++square) {
    const int col = first_col + square * kTileCols;
    const auto col_of = [&](int i) { return col + i / 4 * 8 + lane % 4 * 2 + i % 2; };
    if constexpr (kKind == LayerKind::Gated)
      write_square<Element>({layer.z[0], &layer.z_maps[0], layer.n}, buffer, row, place.row_end, col, [&](int i) {
        return epilogue.template pre_activation<0>(col_of(i), sums[square * kEach + i]);
      });
    constexpr int kUp = kKind == LayerKind::Gated ? 1 : 0;
    write_square<Element>({layer.z[1], &layer.z_maps[1], layer.n},
                          buffer + (kUp + square * (1 - kUp)) % 2 * kSquareBytes, row, place.row_end, col, [&](int i) {
                            return epilogue.template pre_activation<kUp>(col_of(i),
                                                                         sums[(kUp * 64 + square * kEach + i) % 128]);
                          });
  }
}

template <typename Element, LayerKind kKind>
__device__ void multiply_tiles(const Sm90Layer& layer, Shared& shared, int tiles_n) {
  wait_for_launch_before();
  const int group = sm90::warp_in_block() / 4 - 1;
  const int warp = sm90::warp_in_block() % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto rank = static_cast<int>(sm90::cluster_rank());
  const int own_row = rank * kBlockRows + group * 64 + warp * kStoreRows;
  std::byte* const buffer = shared.out + (group * 4 + warp) * 2 * kSquareBytes;
  TileScheduler scheduler(layer.tiles, layer.experts, kBlockRows * kCluster, tiles_n);
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
  LayerTile next = tile < count ? uniform(scheduler.at(tile)) : LayerTile{};
  // The tile whose stores are on their way.
  LayerTile stored;
  const auto count_stored = [&] {
    if (stored.row_end > 0) count_written(layer, stored, kStoreRows, tile_cols(kKind, kHalfRows));
  };
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
      if (step == 0 && tile < count) next = uniform(scheduler.at(tile));
    }
    sm90::mma_wait<0>();
    release(last);
    count_stored();
    stored = place;
    with_epilogue<Element, kKind>(
        layer, place.expert, [&](const auto& epilogue) { write_tile(layer, place, row, buffer, sums, p, epilogue); });
  }
  count_stored();
}

template <typename Element, LayerKind kKind>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_saving_gemm(const __grid_constant__ Sm90Layer layer, int tiles_n) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    sm90::tensor_map_prefetch(&layer.a_map);
    if (layer.out.wide) sm90::tensor_map_prefetch(&layer.out_map);
    for (int i = 0; i < kStages; ++i) {
      sm90::barrier_init(&shared.full[i], 1);
      sm90::barrier_init(&shared.empty[i], kConsumers * kCluster);
    }
    sm90::barrier_init_fence();
  }
  sm90::cluster_sync();
  if (threadIdx.x < kWarpgroup) {
    sm90::give_registers<40>();
    if (sm90::warp_in_block() == 0 && sm90::is_elected()) load_tiles(layer, shared, tiles_n);
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
  const int tiles_n = (layer.n + tile_cols(kKind, kHalfRows) - 1) / tile_cols(kKind, kHalfRows);
  launch_overlapping(sm90_saving_gemm<Element, kKind>, static_cast<unsigned>(multiprocessors / kCluster * kCluster),
                     kThreads, static_cast<int>(sizeof(Shared)), stream, layer, tiles_n);
}

template <typename Element>
void launch_kind(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  layer.kind == LayerKind::Gated ? launch<Element, LayerKind::Gated>(layer, multiprocessors, stream)
                                 : launch<Element, LayerKind::Ungated>(layer, multiprocessors, stream);
}

}  // namespace

void launch_sm90_saving_gemm(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  if (layer.dtype == Dtype::BF16)
    launch_kind<__nv_bfloat16>(layer, multiprocessors, stream);
  else
    launch_kind<__half>(layer, multiprocessors, stream);
}

}  // namespace glu_ckpt
