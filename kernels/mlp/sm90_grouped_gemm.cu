/// The layer for many rows an expert, which is bound by arithmetic: C = A B^T in tiles of 128 x 192 a warpgroup, or of
/// 128 x 128, whose results leave while the other warpgroup multiplies. FC1 saves z here, too.
///
/// A block stays on its multiprocessor and takes one tile after the other. Two blocks are a cluster: they work on
/// neighbouring rows and the same weights, of which each loads half for both. A result's gate and up sums are in the
/// same thread, because the halves are the lower and the upper columns of one instruction.

#include "kernels/mlp/load_layer.cuh"
#include "kernels/mlp/sm90_ping_pong.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

constexpr int kTileRows = kBlockRows * kCluster;

/// Each warp has one square of results on its way out. It waits for a square to leave while the other warpgroup
/// multiplies, and beside two squares there would be no room for as many stages.
constexpr int kSquares = 1;
template <int kHalf>
using Shared = QueuedStages<PingPongStages<kHalf == kShortHalfRows ? 6 : 5, kSquares, 2 * kHalf>,
                            TileQueue<LayerTile, kCluster, 1>>;
static_assert(2 * kLongHalfRows == kPingPongCols);

/// The half of a tile's weights that a block loads for both.
template <int kHalf>
class OwnHalf {
 public:
  __device__ OwnHalf(const Sm90Layer& layer, const LayerTile& tile)
      : half_(layer, tile, static_cast<int>(cluster_rank())) {}
  __device__ void open() { half_.open(); }
  __device__ void load(std::byte* stage, uint64_t* full, int step) const {
    half_.template load<true>(stage + kABytes + cluster_rank() * kHalf * kTileRowBytes, full, step * kTileCols,
                              kEvictNormal);
  }

 private:
  TmaWeightLoader<kHalf> half_;
};

template <int kHalf>
__device__ void load_tiles(const Sm90Layer& layer, Shared<kHalf>& shared) {
  const int own_row = static_cast<int>(cluster_rank()) * kBlockRows;
  load_layer<OwnHalf<kHalf>>(
      layer, shared, kTileRows, [&](std::byte* stage, uint64_t* full, const LayerTile& tile, int step) {
        load_tile_2d(stage, &layer.a_map, full, step * kTileCols, static_cast<int>(tile.row) + own_row, kEvictNormal);
      });
}

template <int kHalf>
__device__ void schedule_tiles(const Sm90Layer& layer, Shared<kHalf>& shared, int tiles_n) {
  if (cluster_rank() == 0) schedule_layer(layer, shared, kTileRows, tiles_n);
}

/// Writes a warp's 16 rows of a part of a tile, from `row` on, square by square.
template <LayerKind kKind, int kHalf>
class PartWriter {
 public:
  __device__ PartWriter(const LayerTile& place, i64 row, std::byte* buffer)
      : row_(row), row_end_(place.row_end), first_col_(place.n * kCols), buffer_(buffer) {}

  /// Writes value(col, i) for the i-th sum of a thread in each column.
  template <typename Element, typename Value>
  __device__ void write(const RowsOut& out, const CUtensorMap* map, int cols, const Value& value) {
#pragma unroll
    for (int first = 0; first < kCols; first += kTileCols) {
      const int col = first_col_ + first;
      if (col >= cols) break;
      const auto at = [&](int i) {
        return value(col + i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2, first / 2 + i);
      };
      if (first + kTileCols <= kCols)
        write_square<Element, kTileCols, kSquares>({out, map, cols}, buffer_, row_, row_end_, col, at);
      else
        write_square<Element, kLastCols, kSquares>({out, map, cols}, buffer_, row_, row_end_, col, at);
    }
  }

 private:
  static constexpr int kCols = tile_cols(kKind, kHalf);
  /// Those of the last square.
  static constexpr int kLastCols = (kCols - 1) % kTileCols + 1;
  i64 row_, row_end_;
  int first_col_;
  std::byte* buffer_;
};

/// Writes a warp's part of a tile; p are the probabilities of this thread's two rows.
template <typename EpilogueType, int kSums>
__device__ void write_part(const Sm90Layer& layer, const LayerTile& place, i64 row, std::byte* buffer,
                           const float (&sums)[kSums], const float (&p)[2], const EpilogueType& epilogue) {
  constexpr LayerKind kKind = EpilogueType::kKind;
  constexpr int kSecond = kSums / 2;
  using Element = typename EpilogueType::Element;
  PartWriter<kKind, kSums> writer(place, row, buffer);
  writer.template write<Element>(layer.out, &layer.out_map, layer.n, [&](int col, int i) {
    return epilogue(col, sums[i], sums[(kSecond + i) % kSums], p[i / 2 % 2]);
  });
}

/// Saves z of a warp's part of a tile. It is called where halves are short: beside the sums of longer ones a thread has
/// no registers for three results of each.
template <typename Element, LayerKind kKind, int kSums>
__device__ void save_part(const Sm90Layer& layer, const LayerTile& place, i64 row, std::byte* buffer,
                          const float (&sums)[kSums]) {
  static_assert(kSums == kShortHalfRows);
  constexpr bool kIsGated = kKind == LayerKind::Gated;
  constexpr int kUp = kIsGated ? 1 : 0;
  // z is the same for every formula.
  const Epilogue<Element, kKind, Formula::Swiglu> epilogue(layer, place.expert);
  PartWriter<kKind, kSums> writer(place, row, buffer);
  if constexpr (kIsGated)
    writer.template write<Element>(layer.z[0], &layer.z_maps[0], layer.n,
                                   [&](int col, int i) { return epilogue.template pre_activation<0>(col, sums[i]); });
  writer.template write<Element>(layer.z[1], &layer.z_maps[1], layer.n, [&](int col, int i) {
    return epilogue.template pre_activation<kUp>(col, sums[kUp * kSums / 2 + i]);
  });
}

template <typename Element, LayerKind kKind, int kHalf>
__device__ void multiply_tiles(const Sm90Layer& layer, Shared<kHalf>& shared) {
  if (!layer.follows_layer) wait_for_launch_before();
  const Worker worker;
  const int steps = tiles_of(layer.k, kTileCols);
  PingPong ping_pong(shared, worker);
  std::byte* const buffer = shared.out_of(worker.group, worker.warp);
  const int own_row = worker.rank * kBlockRows + worker.warp * kStoreRows;
  constexpr int kCols = tile_cols(kKind, kHalf);
  // FC1's tile whose stores are on their way.
  LayerTile stored;
  const auto count_stored = [&] {
    if (kKind != LayerKind::Linear && stored.row_end > 0)
      count_written(layer, stored.expert, kParts, cols_within(stored.n * kCols, kCols, layer.n));
  };
  for (int turn = worker.group;; turn += kConsumers) {
    const LayerTile place = shared.queue.take_by_warp(turn, worker.lane);
    if (!place.is_there()) break;
    const i64 row = place.row + own_row;
    float p[kParts][2];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        p[part][i] = probability<Element, kKind>(layer, row + part * 64 + worker.lane / 4 + 8 * i, place.row_end);
    float sums[kParts][kHalf];
    // All rows of gate lie before those of up.
    constexpr int kGate = kKind == LayerKind::Gated ? kHalf : 0;
    with_cols<2 * kHalf, kGate>(kGate + layer.n - place.n * kCols, [&](auto cols) {
      const auto multiply = [&](const std::byte* stage, int step) {
        multiply_stage<Element, 0, 0, decltype(cols)::value>(sums, stage, step > 0);
      };
      ping_pong.take_turn(
          turn > 0 ? steps : 0, steps, [] {}, multiply);
    });
    count_stored();
    stored = place;
    with_epilogue<Element, kKind>(layer, place.expert, [&](const auto& epilogue) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        write_part(layer, place, row + part * 64, buffer, sums[part], p[part], epilogue);
    });
    if constexpr (kKind != LayerKind::Linear && kHalf == kShortHalfRows)
      if (layer.z[1].data != nullptr)
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          save_part<Element, kKind>(layer, place, row + part * 64, buffer, sums[part]);
  }
  count_stored();
  if (is_elected()) store_wait_all();
  // Who waits for this launch waits for the one before, too.
  if (layer.follows_layer) wait_for_launch_before();
}

template <typename Element, LayerKind kKind, int kHalf>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_grouped_gemm(const __grid_constant__ Sm90Layer layer, int tiles_n) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<kHalf>*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_tiles<kHalf>(layer, shared); }, [&] { multiply_tiles<Element, kKind, kHalf>(layer, shared); },
      [&] { schedule_tiles<kHalf>(layer, shared, tiles_n); }));
}

template <typename Element, LayerKind kKind, int kHalf>
void launch(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  constexpr int kCols = tile_cols(kKind, kHalf);
  launch_overlapping(sm90_grouped_gemm<Element, kKind, kHalf>,
                     static_cast<unsigned>(multiprocessors / kCluster * kCluster), kThreads,
                     static_cast<int>(sizeof(Shared<kHalf>)), stream, layer, (layer.n + kCols - 1) / kCols);
}

template <typename Element>
void launch_kind(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  switch (layer.kind) {
    case LayerKind::Gated:
      if (layer.half_rows == kShortHalfRows)
        return launch<Element, LayerKind::Gated, kShortHalfRows>(layer, multiprocessors, stream);
      return launch<Element, LayerKind::Gated, kLongHalfRows>(layer, multiprocessors, stream);
    case LayerKind::Ungated:
      if (layer.half_rows == kShortHalfRows)
        return launch<Element, LayerKind::Ungated, kShortHalfRows>(layer, multiprocessors, stream);
      return launch<Element, LayerKind::Ungated, kLongHalfRows>(layer, multiprocessors, stream);
    case LayerKind::Linear: return launch<Element, LayerKind::Linear, kLongHalfRows>(layer, multiprocessors, stream);
  }
}

#undef GLU_HOPPER_ONLY

}  // namespace

TileHeight sm90_grouped_gemm_height() { return {kBlockRows, kTileRows}; }

void launch_sm90_grouped_gemm(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  if (layer.dtype == Dtype::BF16)
    launch_kind<__nv_bfloat16>(layer, multiprocessors, stream);
  else
    launch_kind<__half>(layer, multiprocessors, stream);
}

}  // namespace glu_ckpt
