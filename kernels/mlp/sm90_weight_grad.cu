/// Weight gradients: dW = A^T B, where an expert's rows are the axis that is summed over. Where an expert has few rows,
/// a tile has few steps and much to write, and without turns writing would take as long as multiplying.

#include <type_traits>

#include "kernels/mlp/sm90_ping_pong.cuh"
#include "kernels/mlp/stored_element.cuh"
#include "kernels/mlp/tile_rounds.hpp"

namespace glu_ckpt {
namespace {

using namespace sm90;

/// Results leave by as many of a warp's squares at a time as it has. A tile of few steps ends soon after the one before
/// has left: there all squares of a part leave together. Where a tile has many, a fifth stage is worth more, and where
/// results do not leave by TMA, for those need no squares.
using FewSteps = PingPongStages<4, kPingPongChunks>;
using ManySteps = PingPongStages<5, 1>;
/// The most rows that an expert has on average where tiles count as those of few steps.
constexpr i64 kFewRows = 512;

/// The rows of an expert, from `first` to before `end`. They are looked up a tile ahead, so that they come from memory
/// before they are used.
struct ExpertRows {
  i64 first = 0, end = 0;

  __device__ int count() const { return static_cast<int>(end - first); }
  __device__ int steps() const { return tiles_of(count(), kDepthRows); }
};

/// The place of a cluster's tile of weight gradients.
struct GradTile {
  int expert = 0, matrix = 0;
  /// The first row and column.
  int m = 0, n = 0;
  ExpertRows rows;
};

class GradScheduler {
 public:
  __device__ explicit GradScheduler(const Sm90WeightGrad& job)
      : job_(job), count_(job.args.tiles.status->fault == SplitFault::None ? job.tiles.count() : 0) {}

  /// Returns the number of tiles; 0 where splits are wrong.
  __device__ u32 count() const { return count_; }

  /// Looks a tile up; one without rows where there is none of this number.
  __device__ GradTile at(u32 tile) const {
    if (tile >= count_) return {};
    const GradPlace place = job_.tiles.at(tile);
    return {static_cast<int>(place.expert), static_cast<int>(place.matrix),
            static_cast<int>(place.m) * kBackwardTileRows, static_cast<int>(place.n) * kPingPongCols,
            rows_of(place.expert)};
  }

  /// The rows of a tile's expert; none where there is no tile of this number.
  __device__ ExpertRows rows(u32 tile) const { return tile < count_ ? rows_of(job_.tiles.expert(tile)) : ExpertRows{}; }

 private:
  __device__ ExpertRows rows_of(u32 expert) const {
    const i64* const first = job_.args.tiles.first_row + expert;
    return {__ldg(first), __ldg(first + 1)};
  }

  const Sm90WeightGrad& job_;
  u32 count_;
};

/// The tiles of this block's cluster.
__device__ inline TileRounds cluster_rounds() { return {blockIdx.x / kCluster, gridDim.x / kCluster}; }

template <typename SharedType>
__device__ void load_weight_grad(const Sm90WeightGrad& job, SharedType& shared) {
  const auto rank = static_cast<int>(cluster_rank());
  const GradScheduler scheduler(job);
  StageFiller<SharedType> filler(shared);
  const u32 count = scheduler.count();
  auto rounds = cluster_rounds();
  GradTile next = scheduler.at(rounds.tile());
  while (rounds.tile() < count) {
    const GradTile place = next;
    rounds.next();
    next = scheduler.at(rounds.tile());
    const int steps = place.rows.steps();
    for (int step = 0; step < steps; ++step) {
      std::byte* const stage = filler.next(SharedType::kStageBytes);
      const int row = static_cast<int>(place.rows.first) + step * kDepthRows;
#pragma unroll
      for (int chunk = 0; chunk < kParts; ++chunk)
        load_tile_2d(stage + chunk * kChunkBytes, &job.a_maps[place.matrix], filler.full(),
                     place.m + rank * kBlockRows + chunk * kTileCols, row, kEvictNormal);
#pragma unroll
      for (int chunk = 0; chunk < kPingPongChunks; ++chunk)
        load_tile_2d_multicast(stage + kABytes + chunk * kChunkBytes + rank * kHalfChunkBytes, &job.b_map,
                               filler.full(), place.n + chunk * kTileCols, row + rank * kHalfDepthRows, 3,
                               kEvictNormal);
    }
  }
  filler.finish();
}

/// Clears the rows of a stage that are not the expert's: they may hold anything, NaNs too.
__device__ inline void clear_rows(std::byte* stage, int first_row, const Worker& worker) {
  constexpr int kPieces = kTileRowBytes / 16;
  const int rows = kDepthRows - first_row;
  for (int i = worker.thread; i < (kParts + kPingPongChunks) * rows * kPieces; i += kWarpgroup) {
    const int chunk = i / (rows * kPieces);
    const int in_chunk = i - chunk * rows * kPieces;
    *reinterpret_cast<uint4*>(stage + chunk * kChunkBytes + first_row * kTileRowBytes + in_chunk * 16) = uint4{};
  }
  publish_shared();
  warpgroup_sync(1 + worker.group);
}

/// The place of rows of a gradient that TMA writes: they lie in the GLU block `block`, from its row `in_block` on.
struct GradRows {
  const TmaWeight* out = nullptr;
  int block_rows = 1, box_rows = kStoreRows;
  int block = 0, in_block = 0;

  GradRows() = default;
  __device__ GradRows(const TmaWeight* grad, int row)
      : out(grad), block_rows(__ldg(&grad->block_rows)), box_rows(__ldg(&grad->box_rows)) {
    block = row / block_rows;
    in_block = row - block * block_rows;
  }
  /// Goes on by `rows`.
  __device__ void skip(int rows) {
    in_block += rows;
    while (in_block >= block_rows) {
      in_block -= block_rows;
      ++block;
    }
  }
};

/// Stores a warp's 16 rows of a part of a tile by TMA, in squares of which kSquares leave together: the wait for the
/// stores before and the fence by which TMA sees shared memory take 450 cycles, as long as two squares.
template <typename Element, int kSquares>
__device__ inline void store_grad_rows(const GradRows& first, std::byte* buffer, int rows, int col, int cols,
                                       const float (&sums)[kPartSums]) {
  static_assert(kPingPongChunks % kSquares == 0);
  const uint32_t base = shared_address(buffer);
#pragma unroll
  for (int square = 0; square < kPingPongChunks; square += kSquares) {
    const int square_col = col + square * kTileCols;
    if (square_col >= cols) break;
    const int squares = min(kSquares, tiles_of(cols - square_col, kTileCols));
    if (is_elected()) store_wait_read<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kSquares; ++i) {
      if (i >= squares) break;
#pragma unroll
      for (int chunk = 0; chunk < kTileCols / 8; chunk += 2) {
        const float* const v = sums + (square + i) * 32 + chunk * 4;
        store_matrices(square_address(base + i * kSquareBytes, chunk), pack<Element>(v[0], v[1]),
                       pack<Element>(v[2], v[3]), pack<Element>(v[4], v[5]), pack<Element>(v[6], v[7]));
      }
    }
    publish_shared();
    __syncwarp();
    if (is_elected()) {
      GradRows to = first;
      for (int r = 0; r < min(kStoreRows, rows); r += to.box_rows) {
        for (int i = 0; i < squares; ++i)
          store_tile_3d(&to.out->map, buffer + i * kSquareBytes + r * kSquareRowBytes, square_col + i * kTileCols,
                        to.in_block, to.block);
        to.skip(to.box_rows);
      }
      store_commit();
    }
  }
}

/// Stores two neighbours of a row, of which 8 bytes of fp32 or 4 of 16 bits are aligned.
template <typename Element>
__device__ inline void store_pair(std::byte* at, Dtype dtype, bool accumulate, float first, float second) {
  if (dtype == Dtype::F32) {
    auto* const out = reinterpret_cast<float2*>(at);
    const float2 old = accumulate ? *out : float2{};
    *out = accumulate ? make_float2(first + old.x, second + old.y) : make_float2(first, second);
    return;
  }
  auto* const out = reinterpret_cast<uint32_t*>(at);
  if (accumulate) {
    const uint32_t old = *out;
    const auto low = static_cast<unsigned short>(old);
    const auto high = static_cast<unsigned short>(old >> 16);
    first += widen(*reinterpret_cast<const Element*>(&low));
    second += widen(*reinterpret_cast<const Element*>(&high));
  }
  *out = pack<Element>(first, second);
}

template <typename Element>
__device__ inline void store_grad_pairs(const StoredMatrix& grad, bool accumulate, int row, int col, int lane,
                                        const float (&sums)[kPartSums]) {
  const i64 element_bytes = grad.dtype == Dtype::F32 ? 4 : 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + lane / 4 + half * 8;
    if (r >= grad.rows) continue;
    auto* const to = const_cast<std::byte*>(stored_row(grad, r).data);
#pragma unroll
    for (int j = 0; j < kPingPongCols / 8; ++j) {
      const int c = col + j * 8 + lane % 4 * 2;
      if (c < grad.cols)
        store_pair<Element>(to + c * element_bytes, grad.dtype, accumulate, sums[j * 4 + half * 2],
                            sums[j * 4 + half * 2 + 1]);
    }
  }
}

template <typename Element, typename SharedType>
__device__ void weight_grad_tiles(const Sm90WeightGrad& job, SharedType& shared) {
  const Worker worker;
  const GradScheduler scheduler(job);
  std::byte* const buffer = shared.out_of(worker.group, worker.warp);
  PingPong ping_pong(shared, worker);
  const u32 count = scheduler.count();
  auto rounds = cluster_rounds();
  ExpertRows before;
  if (worker.group > 0) {
    before = scheduler.rows(rounds.tile());
    rounds.next();
  }
  GradTile next = scheduler.at(rounds.tile());
  while (rounds.tile() < count) {
    const GradTile place = next;
    rounds.next();
    const int steps_before = before.steps();
    const int steps = place.rows.steps();
    const int rest = place.rows.count() % kDepthRows;
    const int table = place.expert * kMlpMatrices + static_cast<int>(job.which[place.matrix]);
    const int first_row = place.m + worker.rank * kBlockRows + worker.warp * kStoreRows;
    GradRows at;
    const auto look_ahead = [&] {
      if (job.out != nullptr) at = GradRows(job.out + table, first_row);
      before = scheduler.rows(rounds.tile());
      rounds.next();
      next = scheduler.at(rounds.tile());
    };
    const auto store = [&](const PingPongSums& sums) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int row = first_row + part * 64;
        if constexpr (std::is_same_v<SharedType, ManySteps>) {
          if (job.out == nullptr) {
            store_grad_pairs<Element>(job.args.grads[table], job.args.accumulate, row, place.n, worker.lane,
                                      sums[part]);
            continue;
          }
        }
        if (row < job.m) {
          store_grad_rows<Element, SharedType::kSquares>(at, buffer, job.m - row, place.n, job.n, sums[part]);
          at.skip(64);
        }
      }
    };
    if (steps == 0) {
      ping_pong.pass_turn(steps_before, look_ahead);
      if (!job.args.accumulate) store(PingPongSums{});
      continue;
    }
    PingPongSums sums;
    with_cols(job.n - place.n, [&](auto cols) {
      ping_pong.take_turn(steps_before, steps, look_ahead, [&](std::byte* stage, int step) {
        if (rest > 0 && step == steps - 1) clear_rows(stage, rest, worker);
        multiply_stage<Element, 1, 1, decltype(cols)::value>(sums, stage, step > 0);
      });
    });
    store(sums);
  }
  if (is_elected()) store_wait_all();
}

template <typename Element, typename SharedType>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_weight_grad(const __grid_constant__ Sm90WeightGrad job, int) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<SharedType*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_weight_grad(job, shared); }, [&] { weight_grad_tiles<Element>(job, shared); }));
}

#undef GLU_HOPPER_ONLY

template <typename Element>
void launch_element(const Sm90WeightGrad& job, int multiprocessors, GpuStream stream) {
  if (job.out != nullptr && job.args.rows <= kFewRows * job.args.experts)
    launch<FewSteps>(sm90_weight_grad<Element, FewSteps>, "sm90_weight_grad", job, 0, multiprocessors, stream);
  else
    launch<ManySteps>(sm90_weight_grad<Element, ManySteps>, "sm90_weight_grad", job, 0, multiprocessors, stream);
}

}  // namespace

void launch_sm90_weight_grad(Sm90WeightGrad job, int multiprocessors, GpuStream stream) {
  job.tiles =
      GradTiles(job.args.experts, job.matrices, tiles_of(job.m, kBackwardTileRows), tiles_of(job.n, kPingPongCols));
  if (job.args.dtype == Dtype::BF16)
    launch_element<__nv_bfloat16>(job, multiprocessors, stream);
  else
    launch_element<__half>(job, multiprocessors, stream);
}

}  // namespace glu_ckpt
