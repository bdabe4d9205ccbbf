/// The derivative: G = dout W_down, and from it and z da, du, y and parts of dprobs. z comes, and the results leave,
/// square by square while the other warpgroup multiplies.

#include "kernels/mlp/backward_tiles.cuh"
#include "kernels/mlp/derivative.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

static_assert(kPingPongCols == kSm90PartCols);

/// A warp has three squares: of z's gate and up, in whose places da and du are made, and of y.
struct Shared : QueuedStages<PingPongStages<4, 3>, TileQueue<LayerTile, kCluster, 1>> {
  /// z's squares have come, for each warp.
  uint64_t z_full[kConsumers * 4];

  __device__ void init() {
    QueuedStages::init();
    for (uint64_t& barrier : z_full) barrier_init(&barrier, 1);
  }
};

/// Each tile along the columns reads the rows of dout again: L2 is to keep them.
class DeriveLoader {
 public:
  __device__ DeriveLoader(const Sm90Derive& job, Shared& shared) : job_(job), filler_(shared) {}

  __device__ void look_ahead(const LayerTile& tile) const { tensor_map_to_l2(&job_.down[tile.expert].map); }
  __device__ int begin(const LayerTile& tile) {
    row_ = static_cast<int>(tile.row) + static_cast<int>(cluster_rank()) * kBlockRows;
    down_ = WeightColumns<kPingPongChunks>(job_.down + tile.expert, tile.n);
    return tiles_of(job_.args.hidden, kDepthRows);
  }
  __device__ void load(int from, int to) {
    for (int step = from; step < to; ++step) {
      std::byte* const stage = filler_.next(Shared::kStageBytes);
      load_tile_2d(stage, &job_.dout_map, filler_.full(), step * kDepthRows, row_, kEvictLast);
      down_.load(stage + kABytes, filler_.full());
    }
  }
  __device__ void finish() { filler_.finish(); }

 private:
  const Sm90Derive& job_;
  StageFiller<Shared> filler_;
  int row_ = 0;
  WeightColumns<kPingPongChunks> down_;
};

/// The squares of a warp's part of a tile, 16 rows of each part by 64 columns, one after the other.
class TileSquares {
 public:
  __device__ TileSquares(const Worker& worker, const LayerTile& place, int width)
      : row_(static_cast<int>(place.row) + worker.rank * kBlockRows + worker.warp * kStoreRows),
        col_(place.n * kPingPongCols),
        chunks_(min(kPingPongChunks, tiles_of(width - col_, kTileCols))) {}

  /// Returns the next square within F, or kTileSquares.
  __device__ int after(int square) const {
    const bool is_within = (square + 1) % kPingPongChunks < chunks_;
    return is_within ? square + 1 : (square / kPingPongChunks + 1) * kPingPongChunks;
  }
  __device__ int chunks() const { return chunks_; }
  __device__ int row(int square) const { return row_ + square / kPingPongChunks * 64; }
  __device__ int col(int square) const { return col_ + square % kPingPongChunks * kTileCols; }

 private:
  int row_, col_, chunks_;
};
constexpr int kTileSquares = kParts * kPingPongChunks;

/// Loads z into the squares of a warp.
template <bool kGated>
struct ZLoader {
  const Sm90Derive& job;
  std::byte* squares;
  uint64_t* full;

  /// One lane calls it, once the squares are free.
  __device__ void load(const TileSquares& tile, int square) const {
    barrier_expect(full, kGated ? 2 * kSquareBytes : kSquareBytes);
    if constexpr (kGated) load_tile_2d(squares, &job.z_maps[0], full, tile.col(square), tile.row(square), kEvictFirst);
    load_tile_2d(squares + kSquareBytes, &job.z_maps[1], full, tile.col(square), tile.row(square), kEvictFirst);
  }
};

/// Makes da, du and y of a warp's 16 x 64 sums in the place of z: gate's square, up's, and behind them y's.
template <typename Element, Formula kFormula, bool kGated>
__device__ inline void derive_square(const Activation& activation, std::byte* squares, const float (&p)[2],
                                     float (&dp)[2], const float* sums) {
  const uint32_t gate_base = shared_address(squares);
  const uint32_t up_base = gate_base + kSquareBytes;
  const uint32_t y_base = gate_base + 2 * kSquareBytes;
#pragma unroll
  for (int chunk = 0; chunk < kTileCols / 8; chunk += 2) {
    uint32_t a[4] = {};
    uint32_t u[4];
    uint32_t y[4];
    const float* const g = sums + chunk * 4;
    if constexpr (kGated) load_matrices(square_address(gate_base, chunk), a);
    load_matrices(square_address(up_base, chunk), u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 gates = unpack<Element>(a[i]);
      const float2 ups = unpack<Element>(u[i]);
      const Derived first = derive<Element, kFormula>(activation, gates.x, ups.x, g[2 * i], p[i % 2]);
      const Derived second = derive<Element, kFormula>(activation, gates.y, ups.y, g[2 * i + 1], p[i % 2]);
      dp[i % 2] += first.dp;
      dp[i % 2] += second.dp;
      a[i] = pack<Element>(first.da, second.da);
      u[i] = pack<Element>(first.du, second.du);
      y[i] = pack<Element>(first.y, second.y);
    }
    if constexpr (kGated) store_matrices(square_address(gate_base, chunk), a[0], a[1], a[2], a[3]);
    store_matrices(square_address(up_base, chunk), u[0], u[1], u[2], u[3]);
    store_matrices(square_address(y_base, chunk), y[0], y[1], y[2], y[3]);
  }
}

/// Stores the parts of dprobs that a tile has for a lane's two rows: `row`, and the one 8 behind it. Four lanes have
/// parts of a row's sum.
__device__ inline void store_dp(const BackwardArgs& args, const LayerTile& place, i64 row, const float (&dp)[2],
                                int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = dp[i] + __shfl_xor_sync(0xffffffffU, dp[i], 1);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    const i64 r = row + 8 * i;
    if (lane % 4 == 0 && r < place.row_end) args.dp_parts[r * args.parts + place.n] = sum;
  }
}

template <typename Element, bool kGated>
__device__ void derive_tiles(const Sm90Derive& job, Shared& shared) {
  const BackwardArgs& args = job.args;
  const Worker worker;
  const int steps = tiles_of(args.hidden, kDepthRows);
  PingPong ping_pong(shared, worker);
  std::byte* const squares = shared.out_of(worker.group, worker.warp);
  uint64_t* const z_full = &shared.z_full[worker.group * 4 + worker.warp];
  const ZLoader<kGated> z{job, squares, z_full};
  uint32_t z_parity = 0;
  const i64 pitch = args.dz_pitch();
  const RowsOut da{args.dz, pitch, true};
  const RowsOut du{static_cast<Element*>(args.dz) + (kGated ? args.width : 0), pitch, true};
  const RowsOut y{args.y, args.width, true};
  for (int turn = worker.group;; turn += kConsumers) {
    const LayerTile place = shared.queue.take_by_warp(turn, worker.lane);
    if (!place.is_there()) break;
    const TileSquares tile(worker, place, args.width);
    if (is_elected()) z.load(tile, 0);
    float p[kParts][2];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        p[part][i] = rounded_probability<Element>(
            args.probs, tile.row(part * kPingPongChunks) + worker.lane / 4 + 8 * i, place.row_end);
    PingPongSums sums;
    with_cols(args.width - place.n * kPingPongCols, [&](auto cols) {
      clear_behind<decltype(cols)::value>(sums);
      const auto multiply = [&](const std::byte* stage, int step) {
        multiply_stage<Element, 0, 1, decltype(cols)::value>(sums, stage, step > 0);
      };
      ping_pong.take_turn(
          turn > 0 ? steps : 0, steps, [] {}, multiply);
    });
    with_formula<kGated>(args.activation, [&](auto formula) {
      constexpr Formula kFormula = decltype(formula)::value;
      float dp[2] = {};
      static_assert(kParts == 2);
      // One body for both parts: unrolled, the kernel would not stay in the instruction cache. One body for all squares
      // would have to copy their sums, as registers have no addresses, and has no registers left for that.
#pragma unroll 1
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int chunk = 0; chunk < kPingPongChunks; ++chunk) {
          if (chunk >= tile.chunks()) break;
          const int square = part * kPingPongChunks + chunk;
          const int row = tile.row(square), col = tile.col(square);
          barrier_wait(z_full, z_parity);
          z_parity ^= 1;
          derive_square<Element, kFormula, kGated>(args.activation, squares, p[0], dp, sums[0] + chunk * 32);
          publish_shared();
          __syncwarp();
          if constexpr (kGated)
            store_square<Element>({da, &job.dz_maps[0], args.width}, squares, row, place.row_end, col);
          store_square<Element>({du, &job.dz_maps[1], args.width}, squares + kSquareBytes, row, place.row_end, col);
          store_square<Element>({y, &job.y_map, args.width}, squares + 2 * kSquareBytes, row, place.row_end, col);
          // Lanes may have stored rows themselves.
          __syncwarp();
          const int following = tile.after(square);
          if (is_elected()) {
            store_commit();
            store_wait_read<0>();
            if (following < kTileSquares) z.load(tile, following);
          }
        }
        store_dp(args, place, tile.row(part * kPingPongChunks) + worker.lane / 4, dp, worker.lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          p[0][i] = p[1][i];
          dp[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < kPartSums; ++i) sums[0][i] = sums[1][i];
      }
    });
  }
  if (is_elected()) store_wait_all();
}

template <typename Element, bool kGated>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_derive(const __grid_constant__ Sm90Derive job, int tiles_n) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_given(shared, DeriveLoader(job, shared)); },
      [&] { derive_tiles<Element, kGated>(job, shared); },
      [&] { give_row_tiles(job.args, shared, tiles_n, job.taken); }));
}

#undef GLU_HOPPER_ONLY

}  // namespace

void launch_sm90_derive(const Sm90Derive& job, int multiprocessors, GpuStream stream) {
  const bool bf16 = job.args.dtype == Dtype::BF16;
  const auto kernel = job.args.gated ? (bf16 ? sm90_derive<__nv_bfloat16, true> : sm90_derive<__half, true>)
                                     : (bf16 ? sm90_derive<__nv_bfloat16, false> : sm90_derive<__half, false>);
  launch<Shared>(kernel, "sm90_derive", job, tiles_of(job.args.width, kPingPongCols), multiprocessors, stream);
}

}  // namespace glu_ckpt
