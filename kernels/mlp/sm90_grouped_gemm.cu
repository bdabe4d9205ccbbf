/// The layer for many rows an expert, which is bound by arithmetic: C = A B^T in tiles of 128 x 192 a warpgroup, whose
/// results leave while the other warpgroup multiplies. FC1 saves z here, too.
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
using Shared = QueuedStages<PingPongStages<5, kSquares>, TileQueue<LayerTile, kCluster, 1>>;
static_assert(2 * kTurnHalfRows == kPingPongCols);

/// The half of a tile's weights that a block loads for both.
class OwnHalf {
 public:
  __device__ OwnHalf(const Sm90Layer& layer, const LayerTile& tile)
      : half_(layer, tile, static_cast<int>(cluster_rank())) {}
  __device__ void open() { half_.open(); }
  __device__ void load(std::byte* stage, uint64_t* full, int step) const {
    half_.template load<true>(stage + kABytes + cluster_rank() * kTurnHalfRows * kTileRowBytes, full, step * kTileCols,
                              kEvictNormal);
  }

 private:
  TmaWeightLoader<kTurnHalfRows> half_;
};

__device__ void load_tiles(const Sm90Layer& layer, Shared& shared) {
  const int own_row = static_cast<int>(cluster_rank()) * kBlockRows;
  load_layer<OwnHalf>(layer, shared, kTileRows, [&](std::byte* stage, uint64_t* full, const LayerTile& tile, int step) {
    load_tile_2d(stage, &layer.a_map, full, step * kTileCols, static_cast<int>(tile.row) + own_row, kEvictNormal);
  });
}

__device__ void schedule_tiles(const Sm90Layer& layer, Shared& shared, int tiles_n) {
  if (cluster_rank() == 0) schedule_layer(layer, shared, kTileRows, tiles_n);
}

/// The place to which a warp writes its 16 rows of a part of a tile.
struct PartPlace {
  const LayerTile& tile;
  i64 row;
  std::byte* buffer;
};

/// Writes kCols columns of a part square by square, of word(i), which are the i-th two neighbours of a thread's
/// columns.
template <typename Element, int kCols, typename Word>
__device__ inline void write_part(const SquareOut& to, const PartPlace& at, const Word& word) {
  // The last square may have fewer columns.
  constexpr int kLastCols = (kCols - 1) % kTileCols + 1;
#pragma unroll
  for (int first = 0; first < kCols; first += kTileCols) {
    const int col = at.tile.n * kCols + first;
    if (col >= to.cols) break;
    const auto in_square = [&](int i) { return word(first / 4 + i); };
    if (first + kTileCols <= kCols)
      write_square<Element, kTileCols, kSquares>(to, at.buffer, at.row, at.tile.row_end, col, in_square);
    else
      write_square<Element, kLastCols, kSquares>(to, at.buffer, at.row, at.tile.row_end, col, in_square);
  }
}

/// The column of a part in which a thread's i-th two neighbours begin.
__device__ inline int word_col(int i) { return i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2; }

/// Adds a bias to the sums of kCols columns, of which the first is `first_col`.
template <int kCols>
__device__ inline void add_bias(float* sums, const float* bias, int first_col, int layer_cols) {
  if (bias == nullptr) return;
#pragma unroll
  for (int i = 0; i < kCols / 4; ++i) {
    const int col = first_col + word_col(i);
    sums[2 * i] += col < layer_cols ? bias[col] : 0;
    sums[2 * i + 1] += col + 1 < layer_cols ? bias[col + 1] : 0;
  }
}

/// FC1's sums of a part as z has them: a word has two neighbours. They take half of the registers, and leave room for
/// the results that are made of them.
using RoundedSums = uint32_t[kPartSums / 2];

/// Rounds a part's sums with their biases.
template <typename Element, LayerKind kKind>
__device__ inline void round_sums(RoundedSums& words, float (&sums)[kPartSums], const Sm90Layer& layer,
                                  const LayerTile& tile) {
  constexpr int kCols = tile_cols(kKind, kTurnHalfRows);
  add_bias<kCols>(sums, expert_bias(layer, 0, tile.expert), tile.n * kCols, layer.n);
  if constexpr (kKind == LayerKind::Gated)
    add_bias<kCols>(sums + kPartSums / 2, expert_bias(layer, 1, tile.expert), tile.n * kCols, layer.n);
#pragma unroll
  for (int i = 0; i < kPartSums / 2; ++i) words[i] = pack<Element>(sums[2 * i], sums[2 * i + 1]);
}

/// Writes a warp's rows of a tile of FC1, and of z where that is saved; p are the probabilities of a thread's two rows
/// of each part. z is written first and then y made of it, which needs fewer registers than both of the sums.
template <typename Element, LayerKind kKind>
__device__ inline void write_first_layer(const Sm90Layer& layer, PartPlace at, PingPongSums& sums,
                                         const float (&p)[kParts][2]) {
  constexpr int kCols = tile_cols(kKind, kTurnHalfRows);
  // Words of up lie behind those of gate.
  constexpr int kUp = kKind == LayerKind::Gated ? kPartSums / 4 : 0;
  RoundedSums z[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) round_sums<Element, kKind>(z[part], sums[part], layer, at.tile);
  const auto for_each_part = [&](const auto& write) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) write(PartPlace{at.tile, at.row + part * 64, at.buffer}, part);
  };
  if (layer.z[1].data != nullptr)
    for_each_part([&](const PartPlace& place, int part) {
      if constexpr (kKind == LayerKind::Gated)
        write_part<Element, kCols>({layer.z[0], &layer.z_maps[0], layer.n}, place, [&](int i) { return z[part][i]; });
      write_part<Element, kCols>({layer.z[1], &layer.z_maps[1], layer.n}, place,
                                 [&](int i) { return z[part][kUp + i]; });
    });
  with_epilogue<Element, kKind>(layer, at.tile.expert, [&](const auto& epilogue) {
    for_each_part([&](const PartPlace& place, int part) {
      write_part<Element, kCols>({layer.out, &layer.out_map, layer.n}, place, [&](int i) {
        const float2 a = unpack<Element>(z[part][i]);
        const float2 u = unpack<Element>(z[part][kUp + i]);
        const float row_p = p[part][i % 2];
        return pack<Element>(epilogue.activated(a.x, u.x, row_p), epilogue.activated(a.y, u.y, row_p));
      });
    });
  });
}

/// Writes a warp's rows of a tile of FC2.
template <typename Element>
__device__ inline void write_second_layer(const Sm90Layer& layer, PartPlace at, const PingPongSums& sums,
                                          const float (&p)[kParts][2]) {
  constexpr int kCols = tile_cols(LayerKind::Linear, kTurnHalfRows);
  with_epilogue<Element, LayerKind::Linear>(layer, at.tile.expert, [&](const auto& epilogue) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      write_part<Element, kCols>({layer.out, &layer.out_map, layer.n}, at, [&](int i) {
        const int col = at.tile.n * kCols + word_col(i);
        const float row_p = p[part][i % 2];
        return pack<Element>(epilogue(col, sums[part][2 * i], 0, row_p),
                             epilogue(col + 1, sums[part][2 * i + 1], 0, row_p));
      });
      at.row += 64;
    }
  });
}

template <typename Element, LayerKind kKind>
__device__ void multiply_tiles(const Sm90Layer& layer, Shared& shared) {
  if (!layer.follows_layer) wait_for_launch_before();
  const Worker worker;
  const int steps = tiles_of(layer.k, kTileCols);
  PingPong ping_pong(shared, worker);
  std::byte* const buffer = shared.out_of(worker.group, worker.warp);
  const int own_row = worker.rank * kBlockRows + worker.warp * kStoreRows;
  constexpr int kCols = tile_cols(kKind, kTurnHalfRows);
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
    PingPongSums sums;
    // All rows of gate lie before those of up.
    constexpr int kGate = kKind == LayerKind::Gated ? kTurnHalfRows : 0;
    with_cols<kGate>(kGate + layer.n - place.n * kCols, [&](auto cols) {
      clear_behind<decltype(cols)::value>(sums);
      const auto multiply = [&](const std::byte* stage, int step) {
        multiply_stage<Element, 0, 0, decltype(cols)::value>(sums, stage, step > 0);
      };
      ping_pong.take_turn(
          turn > 0 ? steps : 0, steps, [] {}, multiply);
    });
    count_stored();
    stored = place;
    if constexpr (kKind == LayerKind::Linear)
      write_second_layer<Element>(layer, {place, row, buffer}, sums, p);
    else
      write_first_layer<Element, kKind>(layer, {place, row, buffer}, sums, p);
  }
  count_stored();
  if (is_elected()) store_wait_all();
  // Who waits for this launch waits for the one before, too.
  if (layer.follows_layer) wait_for_launch_before();
}

template <typename Element, LayerKind kKind>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_grouped_gemm(const __grid_constant__ Sm90Layer layer, int tiles_n) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_tiles(layer, shared); }, [&] { multiply_tiles<Element, kKind>(layer, shared); },
      [&] { schedule_tiles(layer, shared, tiles_n); }));
}

template <typename Element, LayerKind kKind>
void launch(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  constexpr int kCols = tile_cols(kKind, kTurnHalfRows);
  launch_overlapping(sm90_grouped_gemm<Element, kKind>, static_cast<unsigned>(multiprocessors / kCluster * kCluster),
                     kThreads, static_cast<int>(sizeof(Shared)), stream, layer, (layer.n + kCols - 1) / kCols);
}

template <typename Element>
void launch_kind(const Sm90Layer& layer, int multiprocessors, GpuStream stream) {
  switch (layer.kind) {
    case LayerKind::Gated: return launch<Element, LayerKind::Gated>(layer, multiprocessors, stream);
    case LayerKind::Ungated: return launch<Element, LayerKind::Ungated>(layer, multiprocessors, stream);
    case LayerKind::Linear: return launch<Element, LayerKind::Linear>(layer, multiprocessors, stream);
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
