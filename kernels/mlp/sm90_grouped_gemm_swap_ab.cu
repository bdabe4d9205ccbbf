/// The layer for few rows an expert, which is bound by reading weights. A and B are swapped: C^T = B A^T, so that the
/// operand of 64 rows an instruction is the weights, and the other one has as few rows as the expert.
///
/// A block takes 256 weight rows at a time and stays on its multiprocessor. One thread loads, as far ahead as shared
/// memory holds; two warpgroups multiply 64 rows of either half each, so that gate and up of a column meet in the same
/// thread. Between two tiles they must not look into device memory: it is busy, and would be idle once shared memory is
/// full.

#include "kernels/mlp/load_layer.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

/// The weight rows of a half that one warpgroup multiplies.
constexpr int kGroupRows = kHalfRows / kConsumers;
constexpr int kHalfBytes = kHalfRows * kTileRowBytes;
/// A warpgroup's columns of C pass through shared memory in squares, of which its warps store every kGroupWarps-th.
static_assert(kGroupRows == kTileCols && kGroupWarps * 32 == kWarpgroup);

template <int kRows>
struct Shared {
  static constexpr int kABytes = kRows * kTileRowBytes;
  static constexpr int kStageBytes = kABytes + 2 * kHalfBytes;
  static constexpr int kSquares = kRows / kStoreRows;
  static constexpr int kOutBytes = kConsumers * kSquares * kSquareBytes;
  static constexpr int kMostBytes = 225 * 1024;
  static constexpr int kStages = (kMostBytes - kOutBytes) / kStageBytes;
  /// Beside 64 rows, weights that may be evicted first take 1.01 to 1.04 of the time.
  static constexpr uint64_t kWeightPolicy = kRows >= 64 ? kEvictNormal : kEvictFirst;

  /// Both halves of weights, and behind them the rows of A.
  alignas(1024) std::byte stages[kStages][kStageBytes];
  alignas(1024) std::byte out[kConsumers][kSquares * kSquareBytes];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  TileQueue<LayerTile, 1, kConsumers> queue;

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kConsumers);
    }
    queue.init();
  }
};

/// Both halves of a tile's weights.
template <int kRows>
class BothHalves {
 public:
  __device__ BothHalves(const Sm90Layer& layer, const LayerTile& tile)
      : first_(layer, tile, 0), second_(layer, tile, 1) {}
  __device__ void open() {
    first_.open();
    second_.open();
  }
  __device__ void load(std::byte* stage, uint64_t* full, int step) const {
    constexpr uint64_t kPolicy = Shared<kRows>::kWeightPolicy;
    first_.template load<false>(stage, full, step * kTileCols, kPolicy);
    second_.template load<false>(stage + kHalfBytes, full, step * kTileCols, kPolicy);
  }

 private:
  TmaWeightLoader<kHalfRows> first_;
  TmaWeightLoader<kHalfRows> second_;
};

/// L2 keeps what FC1 wrote until FC2 has read it. If it kept the rows of FC1, too, it would have no room for that.
template <int kRows>
__device__ void load_tiles(const Sm90Layer& layer, Shared<kRows>& shared) {
  const uint64_t policy = layer.follows_layer ? kEvictLast : kEvictNormal;
  load_layer<BothHalves<kRows>>(
      layer, shared, kRows, [&](std::byte* stage, uint64_t* full, const LayerTile& tile, int step) {
        load_tile_2d(stage + 2 * kHalfBytes, &layer.a_map, full, step * kTileCols, static_cast<int>(tile.row), policy);
      });
}

/// Passes a warpgroup's kTileCols columns of all rows through shared memory, which transposes them, in squares.
template <typename Element, int kRows, typename Value>
__device__ void write_columns(const SquareOut& to, std::byte* buffer, const LayerTile& place, const Worker& worker,
                              int col, const Value& value) {
  if (col >= to.cols) return;
  const uint32_t base = shared_address(buffer);
  // The columns before have left the buffer.
  if (is_elected()) store_wait_read<0>();
  warpgroup_sync(1 + worker.group);
#pragma unroll
  for (int chunk = 0; chunk < kRows / 8; ++chunk) {
    const int row = chunk * 8 + worker.lane % 8;
    const int piece = (worker.warp * 2 + worker.lane / 8 % 2) ^ (row % 8);
    store_columns(base + row * kSquareRowBytes + piece * 16, pack<Element>(value(chunk * 4), value(chunk * 4 + 1)),
                  pack<Element>(value(chunk * 4 + 2), value(chunk * 4 + 3)));
  }
  publish_shared();
  warpgroup_sync(1 + worker.group);
  for (int square = worker.warp; square < Shared<kRows>::kSquares; square += kGroupWarps)
    store_square<Element>(to, buffer + square * kSquareBytes, place.row + square * kStoreRows, place.row_end, col);
  if (is_elected()) store_commit();
  __syncwarp();
}

/// Writes a warpgroup's part of a tile; p are the probabilities of this thread's rows.
template <int kRows, typename EpilogueType>
__device__ void write_tile(const Sm90Layer& layer, const LayerTile& place, const Worker& worker, std::byte* buffer,
                           const float (&sums)[2][kRows / 2], const float (&p)[kRows / 4],
                           const EpilogueType& epilogue) {
  constexpr LayerKind kKind = EpilogueType::kKind;
  using Element = typename EpilogueType::Element;
  const int in_group = worker.warp * 16 + worker.lane / 4;
#pragma unroll
  for (int half = 0; half < tile_cols(kKind, kHalfRows) / kHalfRows; ++half) {
    const int col = half_row(kKind, kHalfRows, place.n, half) + worker.group * kGroupRows;
    write_columns<Element, kRows>({layer.out, &layer.out_map, layer.n}, buffer, place, worker, col, [&](int i) {
      return epilogue(col + in_group + i / 2 % 2 * 8, sums[half][i], sums[1][i],
                      round_probability<Element, kKind>(p[i / 4 * 2 + i % 2]));
    });
    if (kKind == LayerKind::Linear || layer.z[1].data == nullptr) continue;
    if constexpr (kKind == LayerKind::Gated)
      write_columns<Element, kRows>({layer.z[0], &layer.z_maps[0], layer.n}, buffer, place, worker, col, [&](int i) {
        return epilogue.template pre_activation<0>(col + in_group + i / 2 % 2 * 8, sums[0][i]);
      });
    constexpr int kUp = kKind == LayerKind::Gated ? 1 : 0;
    write_columns<Element, kRows>({layer.z[1], &layer.z_maps[1], layer.n}, buffer, place, worker, col, [&](int i) {
      return epilogue.template pre_activation<kUp>(col + in_group + i / 2 % 2 * 8, sums[kUp == 1 ? 1 : half][i]);
    });
  }
}

template <typename Element, LayerKind kKind, int kRows>
__device__ void multiply_tiles(const Sm90Layer& layer, Shared<kRows>& shared) {
  if (!layer.follows_layer) wait_for_launch_before();
  const Worker worker;
  std::byte* const buffer = shared.out[worker.group];
  const int steps = tiles_of(layer.k, kTileCols);
  PipelineStage<Shared<kRows>::kStages> pipeline;
  // FC1's tile whose stores are on their way. To count it takes microseconds, as to write it does. It is counted at a
  // step of the next tile, so that loads can catch up between the two.
  LayerTile stored;
  const int counting = min(4, steps - 1);
  const auto count_stored = [&] {
    if (kKind == LayerKind::Linear || !stored.is_there()) return;
    const int squares = warp_squares(Shared<kRows>::kSquares, worker.warp);
    const int cols = group_cols(kKind, layer.n, stored.n, worker.group);
    if (squares > 0 && cols > 0) count_written(layer, stored.expert, squares, cols);
  };
  for (int turn = 0;; ++turn) {
    const LayerTile place = shared.queue.take_by_warp(turn, worker.lane);
    if (!place.is_there()) break;
    // Loaded before the products are made, the probabilities are there when they end.
    float p[kRows / 4];
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i)
      p[i] = load_probability<kKind>(layer, place.row + i / 2 * 8 + worker.lane % 4 * 2 + i % 2, place.row_end);
    float sums[2][kRows / 2];
    int last = 0;
    for (int step = 0; step < steps; ++step, pipeline.next()) {
      const std::byte* const stage = shared.stages[pipeline.stage];
      const uint64_t first = tile_descriptor(stage + worker.group * kGroupRows * kTileRowBytes);
      const uint64_t second = tile_descriptor(stage + kHalfBytes + worker.group * kGroupRows * kTileRowBytes);
      const uint64_t rows = tile_descriptor(stage + 2 * kHalfBytes);
      barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
      mma_fence();
#pragma unroll
      for (int k = 0; k < kTileCols / 16; ++k) {
        const int keep = step + k > 0 ? 1 : 0;
        multiply_add<Element, kRows>(sums[0], first + 2 * k, rows + 2 * k, keep);
        multiply_add<Element, kRows>(sums[1], second + 2 * k, rows + 2 * k, keep);
      }
      mma_commit();
      mma_wait<1>();
      if (step > 0 && worker.thread == 0) barrier_arrive(&shared.empty[last]);
      last = pipeline.stage;
      if (step == counting) count_stored();
    }
    mma_wait<0>();
    if (worker.thread == 0) barrier_arrive(&shared.empty[last]);
    stored = place;
    with_epilogue<Element, kKind>(layer, place.expert, [&](const auto& epilogue) {
      write_tile<kRows>(layer, place, worker, buffer, sums, p, epilogue);
    });
  }
  count_stored();
  if (is_elected()) store_wait_all();
  // Who waits for this launch waits for the one before, too.
  if (layer.follows_layer) wait_for_launch_before();
}

template <typename Element, LayerKind kKind, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    sm90_grouped_gemm_swap_ab(const __grid_constant__ Sm90Layer layer, int tiles_n) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<kRows>*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_tiles<kRows>(layer, shared); }, [&] { multiply_tiles<Element, kKind, kRows>(layer, shared); },
      [&] { schedule_layer(layer, shared, kRows, tiles_n); }));
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

#undef GLU_HOPPER_ONLY

}  // namespace

void launch_sm90_grouped_gemm_swap_ab(const Sm90Layer& layer, int rows, int multiprocessors, GpuStream stream) {
  if (layer.dtype == Dtype::BF16)
    launch_rows<__nv_bfloat16>(layer, rows, multiprocessors, stream);
  else
    launch_rows<__half>(layer, rows, multiprocessors, stream);
}

}  // namespace glu_ckpt
