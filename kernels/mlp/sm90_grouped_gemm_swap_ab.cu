/// The layer for few rows an expert, which is bound by reading weights. A and B are swapped: C^T = B A^T, so that the
/// operand of 64 rows an instruction is the weights, and the other one has as few rows as the expert.
///
/// A block takes 256 weight rows at a time and stays on its multiprocessor. One warpgroup loads, as far ahead as shared
/// memory holds; two multiply 64 rows of either half each, so that gate and up of a column meet in the same thread.
///
/// A launch begins while the one before it ends (programmatic dependent launch): the second layer's first weights are
/// loaded while blocks of the first layer still compute.

#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/epilogue.cuh"
#include "kernels/mlp/tile_scheduler.cuh"

namespace glu_ckpt {
namespace {

constexpr int kConsumers = 2;
constexpr int kThreads = kWarpgroup * (1 + kConsumers);
/// The weight rows of a half that one warpgroup multiplies.
constexpr int kGroupRows = kHalfRows / kConsumers;
constexpr int kHalfBytes = kHalfRows * kTileRowBytes;
/// A row of C on its way out has kGroupRows columns.
constexpr int kOutRowBytes = kGroupRows * 2;

template <int kRows>
struct Sizes {
  static constexpr int kABytes = kRows * kTileRowBytes;
  static constexpr int kStageBytes = kABytes + 2 * kHalfBytes;
  static constexpr int kOutBytes = kConsumers * kRows * kOutRowBytes;
  static constexpr int kMostBytes = 225 * 1024;
  static constexpr int kStages = (kMostBytes - kOutBytes) / kStageBytes;
  /// L2 fetches 256 bytes of a row at once, and a step asks for 128. Beside many rows, weights that may be evicted
  /// first are gone before the next step asks for their second half.
  static constexpr uint64_t kWeightPolicy = kRows >= 64 ? sm90::kEvictNormal : sm90::kEvictFirst;
};

template <int kRows>
struct Shared {
  using S = Sizes<kRows>;
  alignas(1024) std::byte stages[S::kStages][S::kStageBytes];
  alignas(1024) std::byte out[S::kOutBytes];
  uint64_t full[S::kStages];
  uint64_t empty[S::kStages];
};

template <int kRows>
__device__ void load_tiles(const Sm90Layer& layer, Shared<kRows>& shared, int tiles_n) {
  using S = Sizes<kRows>;
  TileScheduler scheduler(layer.tiles, layer.experts, kRows, tiles_n);
  const int steps = (layer.k + kTileCols - 1) / kTileCols;
  PipelineStage<S::kStages> pipeline;
  const i64 count = scheduler.count();
  i64 tile = blockIdx.x;
  LayerTile place = tile < count ? scheduler.at(tile) : LayerTile{};
  TmaWeightLoader<kHalfRows> first(layer, place, 0);
  TmaWeightLoader<kHalfRows> second(layer, place, 1);
  for (; tile < count; tile += gridDim.x) {
    first.open();
    second.open();
    const int row = static_cast<int>(place.row);
    const auto load_weights = [&](int stage, int step) {
      std::byte* const to = shared.stages[stage];
      sm90::barrier_expect(&shared.full[stage], S::kStageBytes);
      first.load<false>(to, &shared.full[stage], step * kTileCols, S::kWeightPolicy);
      second.load<false>(to + kHalfBytes, &shared.full[stage], step * kTileCols, S::kWeightPolicy);
    };
    const auto load_rows = [&](int stage, int step) {
      sm90::load_tile_2d(shared.stages[stage] + 2 * kHalfBytes, &layer.a_map, &shared.full[stage], step * kTileCols,
                         row, sm90::kEvictLast);
    };
    const auto load = [&](int from, int to) {
      for (int step = from; step < to; ++step, pipeline.next()) {
        sm90::barrier_wait(&shared.empty[pipeline.stage], pipeline.parity ^ 1);
        load_weights(pipeline.stage, step);
        load_rows(pipeline.stage, step);
      }
    };
    int loaded = min(1, steps);
    if (layer.follows_layer && tile == blockIdx.x) {
      loaded = min(S::kStages, steps);
      load_ahead(
          loaded, [&](int step) { load_weights(step, step); }, wait_for_launch_before,
          [&](int step) { load_rows(step, step); });
      pipeline.skip(loaded);
    } else {
      load(0, loaded);
    }
    // The next tile is looked up while this one's stages are under way.
    const i64 next = tile + gridDim.x;
    const LayerTile next_place = next < count ? scheduler.at(next) : place;
    const TmaWeightLoader<kHalfRows> next_first(layer, next_place, 0);
    const TmaWeightLoader<kHalfRows> next_second(layer, next_place, 1);
    load(loaded, steps);
    place = next_place;
    first = next_first;
    second = next_second;
  }
}

/// Passes a warpgroup's kGroupRows columns of all rows through shared memory, which transposes them. Piece c of row r
/// lies at c ^ r % 8, so that rows' pieces have banks of their own.
template <typename Element, int kRows, typename Value>
__device__ void write_columns(const RowsOut& out, int cols, std::byte* buffer, const LayerTile& place, int group,
                              int col, const Value& value) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const uint32_t base = sm90::shared_address(buffer);
#pragma unroll
  for (int chunk = 0; chunk < kRows / 8; ++chunk) {
    const int row = chunk * 8 + lane % 8;
    const int piece = (warp * 2 + lane / 8 % 2) ^ (row % 8);
    sm90::store_columns(base + row * kOutRowBytes + piece * 16, pack<Element>(value(chunk * 4), value(chunk * 4 + 1)),
                        pack<Element>(value(chunk * 4 + 2), value(chunk * 4 + 3)));
  }
  sm90::warpgroup_sync(1 + group);
  for (int i = thread; i < kRows * 8; i += kWarpgroup) {
    const int row = i / 8;
    const int piece = i % 8;
    if (place.row + row >= place.row_end || col + piece * 8 >= cols) continue;
    const uint4 words = *reinterpret_cast<const uint4*>(buffer + row * kOutRowBytes + (piece ^ (row % 8)) * 16);
    store_piece<Element>(out, cols, place.row + row, col + piece * 8, words);
  }
  sm90::warpgroup_sync(1 + group);
}

template <int kRows, typename EpilogueType>
__device__ void write_tile(const Sm90Layer& layer, const LayerTile& place, int group, std::byte* buffer,
                           const float (&sums)[2][kRows / 2], const EpilogueType& epilogue) {
  constexpr LayerKind kKind = EpilogueType::kKind;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32;
  const int in_group = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < tile_cols(kKind, kHalfRows) / kHalfRows; ++half) {
    const int col = half_row(kKind, kHalfRows, place.n, half) + group * kGroupRows;
    using Element = typename EpilogueType::Element;
    write_columns<Element, kRows>(layer.out, layer.n, buffer, place, group, col, [&](int i) {
      const i64 row = place.row + i / 4 * 8 + lane % 4 * 2 + i % 2;
      return epilogue(col + in_group + i / 2 % 2 * 8, sums[half][i], sums[1][i],
                      probability<Element, kKind>(layer, row, place.row_end));
    });
    if (kKind == LayerKind::Linear || layer.z[1].data == nullptr) continue;
    if constexpr (kKind == LayerKind::Gated)
      write_columns<Element, kRows>(layer.z[0], layer.n, buffer, place, group, col, [&](int i) {
        return epilogue.template pre_activation<0>(col + in_group + i / 2 % 2 * 8, sums[0][i]);
      });
    constexpr int kUp = kKind == LayerKind::Gated ? 1 : 0;
    write_columns<Element, kRows>(layer.z[1], layer.n, buffer, place, group, col, [&](int i) {
      return epilogue.template pre_activation<kUp>(col + in_group + i / 2 % 2 * 8, sums[kUp == 1 ? 1 : half][i]);
    });
  }
}

template <typename Element, LayerKind kKind, int kRows>
__device__ void multiply_tiles(const Sm90Layer& layer, Shared<kRows>& shared, int tiles_n) {
  using S = Sizes<kRows>;
  const int group = sm90::warp_in_block() / 4 - 1;
  std::byte* const buffer = shared.out + group * kRows * kOutRowBytes;
  const bool releases = threadIdx.x % kWarpgroup == 0;
  TileScheduler scheduler(layer.tiles, layer.experts, kRows, tiles_n);
  const int steps = (layer.k + kTileCols - 1) / kTileCols;
  PipelineStage<S::kStages> pipeline;
  const i64 count = scheduler.count();
  for (i64 tile = blockIdx.x; tile < count; tile += gridDim.x) {
    const LayerTile place = uniform(scheduler.at(tile));
    float sums[2][kRows / 2];
    int last = 0;
    for (int step = 0; step < steps; ++step, pipeline.next()) {
      const std::byte* const stage = shared.stages[pipeline.stage];
      const uint64_t first = sm90::tile_descriptor(stage + group * kGroupRows * kTileRowBytes);
      const uint64_t second = sm90::tile_descriptor(stage + kHalfBytes + group * kGroupRows * kTileRowBytes);
      const uint64_t rows = sm90::tile_descriptor(stage + 2 * kHalfBytes);
      sm90::barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
      sm90::mma_fence();
#pragma unroll
      for (int k = 0; k < kTileCols / 16; ++k) {
        const int keep = step + k > 0 ? 1 : 0;
        sm90::multiply_add<Element, kRows>(sums[0], first + 2 * k, rows + 2 * k, keep);
        sm90::multiply_add<Element, kRows>(sums[1], second + 2 * k, rows + 2 * k, keep);
      }
      sm90::mma_commit();
      sm90::mma_wait<1>();
      if (step > 0 && releases) sm90::barrier_arrive(&shared.empty[last]);
      last = pipeline.stage;
    }
    sm90::mma_wait<0>();
    if (releases) sm90::barrier_arrive(&shared.empty[last]);
    with_epilogue<Element, kKind>(layer, place.expert, [&](const auto& epilogue) {
      write_tile<kRows>(layer, place, group, buffer, sums, epilogue);
    });
  }
}

template <typename Element, LayerKind kKind, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    sm90_grouped_gemm_swap_ab(const __grid_constant__ Sm90Layer layer, int tiles_n) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<kRows>*>(memory);
  if (threadIdx.x == 0) {
    sm90::tensor_map_prefetch(&layer.a_map);
    for (int i = 0; i < Sizes<kRows>::kStages; ++i) {
      sm90::barrier_init(&shared.full[i], 1);
      sm90::barrier_init(&shared.empty[i], kConsumers);
    }
    sm90::barrier_init_fence();
  }
  __syncthreads();
  begin_layer(layer);
  if (threadIdx.x < kWarpgroup) {
    sm90::give_registers<40>();
    if (sm90::warp_in_block() == 0 && sm90::is_elected()) load_tiles<kRows>(layer, shared, tiles_n);
    wait_for_launch_before();
  } else {
    wait_for_launch_before();
    sm90::take_registers<232>();
    multiply_tiles<Element, kKind, kRows>(layer, shared, tiles_n);
  }
#else
  __trap();
#endif
}

template <typename Element, LayerKind kKind, int kRows>
void launch(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  const int tiles_n = (layer.n + tile_cols(kKind, kHalfRows) - 1) / tile_cols(kKind, kHalfRows);
  launch_overlapping(sm90_grouped_gemm_swap_ab<Element, kKind, kRows>, static_cast<unsigned>(multiprocessors), kThreads,
                     static_cast<int>(sizeof(Shared<kRows>)), stream, layer, tiles_n);
}

template <typename Element, int kRows>
void launch_kind(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  switch (layer.kind) {
    case LayerKind::Gated: return launch<Element, LayerKind::Gated, kRows>(layer, multiprocessors, stream);
    case LayerKind::Ungated: return launch<Element, LayerKind::Ungated, kRows>(layer, multiprocessors, stream);
    case LayerKind::Linear: return launch<Element, LayerKind::Linear, kRows>(layer, multiprocessors, stream);
  }
}

template <typename Element>
void launch_rows(const Sm90Layer& layer, int rows, int multiprocessors, GpuStream stream) {
  switch (rows) {
    case 16: return launch_kind<Element, 16>(layer, multiprocessors, stream);
    case 32: return launch_kind<Element, 32>(layer, multiprocessors, stream);
    case 64: return launch_kind<Element, 64>(layer, multiprocessors, stream);
    default: return launch_kind<Element, 128>(layer, multiprocessors, stream);
  }
}

}  // namespace

void launch_sm90_grouped_gemm_swap_ab(const Sm90Layer& layer, int rows, int multiprocessors, GpuStream stream) {
  if (layer.dtype == Dtype::BF16)
    launch_rows<__nv_bfloat16>(layer, rows, multiprocessors, stream);
  else
    launch_rows<__half>(layer, rows, multiprocessors, stream);
}

}  // namespace glu_ckpt
