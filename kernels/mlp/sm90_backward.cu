/// The three products of the backward, in tiles of 128 x 256 a block, clusters of two blocks that work on neighbouring
/// rows and share the columns, of which each loads half for both: as sm90_grouped_gemm.cu.
///
/// Weights lie transposed for these products, and of a weight gradient both operands do: they are read as they lie, in
/// squares of 64 x 64 whose rows follow one another along K, which WGMMA takes for 16-bit elements.

#include "kernels/common/cuda_check.hpp"
#include "kernels/grouped_gemm/linear_tiles.hpp"
#include "kernels/mlp/derivative.cuh"
#include "kernels/mlp/sm90_backward.hpp"
#include "kernels/mlp/stored_element.cuh"
#include "kernels/mlp/tile_scheduler.cuh"
#include "kernels/mlp/write_square.cuh"

namespace glu_ckpt {
namespace {

constexpr int kConsumers = 2;
constexpr int kThreads = kWarpgroup * (1 + kConsumers);
constexpr int kCluster = 2;
constexpr int kBlockRows = 64 * kConsumers;
constexpr int kBlockCols = 256;
/// 64 rows of 64 columns.
constexpr int kChunkBytes = kDepthRows * kTileRowBytes;
constexpr int kABytes = kBlockRows * kTileRowBytes;
constexpr int kChunks = kBlockCols / kTileCols;
constexpr int kStageBytes = kABytes + kChunks * kChunkBytes;
static_assert(kBlockRows * kCluster == kBackwardTileRows && kBlockRows == kBackwardBoxRows);
static_assert(kBlockCols == kSm90PartCols && kABytes == 2 * kChunkBytes);

/// kSquares are those of a warp, for results on their way out.
template <int kNumStages, int kNumSquares>
struct Shared {
  static constexpr int kStages = kNumStages;
  static constexpr int kSquares = kNumSquares;
  alignas(1024) std::byte stages[kStages][kStageBytes];
  alignas(1024) std::byte out[kSquares > 0 ? kConsumers * 4 * kSquares* kSquareBytes : 1024];
  /// `full`: a stage's bytes have come; `empty`: both blocks have done with it.
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

/// The loading thread's side of the stages.
template <typename SharedType>
class StageFiller {
 public:
  __device__ explicit StageFiller(SharedType& shared) : shared_(shared) {}

  /// Waits for the next stage, and announces the bytes that will come.
  __device__ std::byte* next(int bytes) {
    if (begun_) pipeline_.next();
    begun_ = true;
    sm90::barrier_wait(&shared_.empty[pipeline_.stage], pipeline_.parity ^ 1);
    sm90::barrier_expect(full(), static_cast<uint32_t>(bytes));
    return shared_.stages[pipeline_.stage];
  }
  __device__ uint64_t* full() const { return &shared_.full[pipeline_.stage]; }

  /// A block must not end while the other block's copies and arrivals are still to come.
  __device__ void finish() {
    for (int i = 0; i < SharedType::kStages; ++i) {
      if (begun_) pipeline_.next();
      begun_ = true;
      sm90::barrier_wait(&shared_.empty[pipeline_.stage], pipeline_.parity ^ 1);
    }
  }

 private:
  SharedType& shared_;
  PipelineStage<SharedType::kStages> pipeline_;
  bool begun_ = false;
};

/// A multiplying thread's place.
struct Worker {
  int group, warp, lane, thread, rank;
  __device__ Worker()
      : group(static_cast<int>(threadIdx.x) / kWarpgroup - 1),
        warp(static_cast<int>(threadIdx.x) / 32 % 4),
        lane(static_cast<int>(threadIdx.x) % 32),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        rank(static_cast<int>(sm90::cluster_rank())) {}

  /// The warp's first row of the cluster's tile, and of the block's.
  __device__ int row() const { return rank * kBlockRows + block_row(); }
  __device__ int block_row() const { return group * 64 + warp * kStoreRows; }

  /// Threads 0 and 1 of a warpgroup arrive at the barriers of blocks 0 and 1.
  template <typename SharedType>
  __device__ void release(SharedType& shared, int stage) const {
    if (thread < kCluster) sm90::barrier_arrive_at(&shared.empty[stage], static_cast<uint32_t>(thread));
  }
};

/// Adds a stage's products to a warpgroup's sums of 64 x 256.
template <typename Element, int kTurnA>
__device__ inline void multiply_stage(float (&sums)[128], const std::byte* stage, int group, bool keep) {
  const std::byte* const first = stage + group * kChunkBytes;
  const uint64_t a = kTurnA == 1 ? sm90::transposed_descriptor(first, kChunkBytes) : sm90::tile_descriptor(first);
  const uint64_t b = sm90::transposed_descriptor(stage + kABytes, kChunkBytes);
#pragma unroll
  for (int k = 0; k < kDepthRows / 16; ++k)
    sm90::multiply_add<Element, kBlockCols, kTurnA, 1>(
        sums, a + static_cast<uint64_t>(k) * (kTurnA == 1 ? sm90::kTransposedStep : 2),
        b + static_cast<uint64_t>(k) * sm90::kTransposedStep, keep || k > 0 ? 1 : 0);
}

/// Takes `steps` stages into the sums, and gives each back. `prepare` is called with a step's number once its bytes
/// have come, `meanwhile` while the first step's products are made.
template <typename Element, int kTurnA, typename SharedType, typename Prepare, typename Meanwhile>
__device__ inline void multiply_steps(float (&sums)[128], SharedType& shared,
                                      PipelineStage<SharedType::kStages>& pipeline, const Worker& worker, int steps,
                                      const Prepare& prepare, const Meanwhile& meanwhile) {
  int last = 0;
  for (int step = 0; step < steps; ++step, pipeline.next()) {
    sm90::barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
    prepare(step, shared.stages[pipeline.stage]);
    sm90::mma_fence();
    multiply_stage<Element, kTurnA>(sums, shared.stages[pipeline.stage], worker.group, step > 0);
    sm90::mma_commit();
    // The step before has ended once this one alone is under way.
    sm90::mma_wait<1>();
    if (step > 0) worker.release(shared, last);
    last = pipeline.stage;
    if (step == 0) meanwhile();
  }
  sm90::mma_wait<0>();
  if (steps > 0) worker.release(shared, last);
}

__device__ inline int tiles_of(int size, int tile) { return (size + tile - 1) / tile; }

// Derive.

using DeriveShared = Shared<4, 0>;

/// 64-column squares of a tile that lie within F.
__device__ inline int squares_of(int width, int n) { return min(kChunks, tiles_of(width - n * kBlockCols, kTileCols)); }

template <bool kGated>
__device__ void load_derive(const Sm90Derive& job, DeriveShared& shared, int tiles_n) {
  const auto rank = static_cast<int>(sm90::cluster_rank());
  TileScheduler scheduler(job.args.tiles, job.args.experts, kBackwardTileRows, tiles_n);
  StageFiller<DeriveShared> filler(shared);
  const int steps = tiles_of(job.args.hidden, kDepthRows);
  const i64 count = scheduler.count();
  for (i64 tile = blockIdx.x / kCluster; tile < count; tile += gridDim.x / kCluster) {
    const LayerTile place = scheduler.at(tile);
    const TmaWeight* const down = job.down + place.expert;
    sm90::tensor_map_acquire(&down->map);
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int step = 0; step < steps; ++step) {
      std::byte* const stage = filler.next(kStageBytes);
      sm90::load_tile_2d(stage, &job.dout_map, filler.full(), step * kDepthRows, row, sm90::kEvictNormal);
#pragma unroll
      for (int chunk = 2 * rank; chunk < 2 * rank + 2; ++chunk)
        load_stored_rows<kDepthRows, true>(stage + kABytes + chunk * kChunkBytes, down, filler.full(),
                                           place.n * kBlockCols + chunk * kTileCols, step * kDepthRows,
                                           sm90::kEvictNormal);
    }
    // z comes through the same stages, one square a stage, so that it is there when the sums are.
    for (int square = 0; square < squares_of(job.args.width, place.n); ++square) {
      std::byte* const stage = filler.next(kGated ? 2 * kABytes : kABytes);
      const int col = place.n * kBlockCols + square * kTileCols;
      if constexpr (kGated) sm90::load_tile_2d(stage, &job.z_maps[0], filler.full(), col, row, sm90::kEvictFirst);
      sm90::load_tile_2d(stage + kABytes, &job.z_maps[1], filler.full(), col, row, sm90::kEvictFirst);
    }
  }
  filler.finish();
}

/// Makes da, du and y of a warp's 16 x 64 sums in the place of z: gate's rows, up's, and behind them y's.
template <typename Element, Formula kFormula, bool kGated, typename Sum>
__device__ inline void derive_square(const Activation& activation, std::byte* stage, const float (&p)[2],
                                     float (&dp)[2], const Sum& sum) {
  const uint32_t gate_base = sm90::shared_address(stage);
  const uint32_t up_base = gate_base + kABytes;
  const uint32_t y_base = gate_base + 2 * kABytes;
#pragma unroll
  for (int chunk = 0; chunk < kTileCols / 8; chunk += 2) {
    uint32_t a[4] = {};
    uint32_t u[4];
    uint32_t y[4];
    if constexpr (kGated) sm90::load_matrices(square_address(gate_base, chunk), a);
    sm90::load_matrices(square_address(up_base, chunk), u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 gates = unpack<Element>(a[i]);
      const float2 ups = unpack<Element>(u[i]);
      const Derived first = derive<Element, kFormula>(activation, gates.x, ups.x, sum(chunk * 4 + 2 * i), p[i % 2]);
      const Derived second =
          derive<Element, kFormula>(activation, gates.y, ups.y, sum(chunk * 4 + 2 * i + 1), p[i % 2]);
      dp[i % 2] += first.dp;
      dp[i % 2] += second.dp;
      a[i] = pack<Element>(first.da, second.da);
      u[i] = pack<Element>(first.du, second.du);
      y[i] = pack<Element>(first.y, second.y);
    }
    if constexpr (kGated) sm90::store_matrices(square_address(gate_base, chunk), a[0], a[1], a[2], a[3]);
    sm90::store_matrices(square_address(up_base, chunk), u[0], u[1], u[2], u[3]);
    sm90::store_matrices(square_address(y_base, chunk), y[0], y[1], y[2], y[3]);
  }
}

template <typename Element, bool kGated>
__device__ void derive_tiles(const Sm90Derive& job, DeriveShared& shared, int tiles_n) {
  const BackwardArgs& args = job.args;
  const Worker worker;
  TileScheduler scheduler(args.tiles, args.experts, kBackwardTileRows, tiles_n);
  const int steps = tiles_of(args.hidden, kDepthRows);
  PipelineStage<DeriveShared::kStages> pipeline;
  const i64 pitch = args.dz_pitch();
  const RowsOut da{args.dz, pitch, true};
  const RowsOut du{static_cast<Element*>(args.dz) + (kGated ? args.width : 0), pitch, true};
  const RowsOut y{args.y, args.width, true};
  const i64 count = scheduler.count();
  const i64 stride = gridDim.x / kCluster;
  i64 tile = blockIdx.x / kCluster;
  LayerTile next = tile < count ? scheduler.at(tile) : LayerTile{};
  while (tile < count) {
    const LayerTile place = next;
    const i64 row = place.row + worker.row();
    const float p[2] = {rounded_probability<Element>(args.probs, row + worker.lane / 4, place.row_end),
                        rounded_probability<Element>(args.probs, row + worker.lane / 4 + 8, place.row_end)};
    tile += stride;
    float sums[128];
    multiply_steps<Element, 0>(
        sums, shared, pipeline, worker, steps, [](int, std::byte*) {},
        [&] {
          if (tile < count) next = scheduler.at(tile);
        });
    const int squares = squares_of(args.width, place.n);
    float dp[2] = {0, 0};
    with_formula<kGated>(args.activation, [&](auto formula) {
      constexpr Formula kFormula = decltype(formula)::value;
      int last = 0;
#pragma unroll
      for (int square = 0; square < kChunks; ++square) {
        if (square >= squares) break;
        const int col = place.n * kBlockCols + square * kTileCols;
        std::byte* const own = shared.stages[pipeline.stage] + worker.block_row() * kTileRowBytes;
        sm90::barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
        derive_square<Element, kFormula, kGated>(args.activation, own, p, dp,
                                                 [&](int i) { return sums[square * 32 + i]; });
        sm90::publish_shared();
        __syncwarp();
        if constexpr (kGated) store_square<Element>({da, &job.dz_maps[0], args.width}, own, row, place.row_end, col);
        store_square<Element>({du, &job.dz_maps[1], args.width}, own + kABytes, row, place.row_end, col);
        store_square<Element>({y, &job.y_map, args.width}, own + 2 * kABytes, row, place.row_end, col);
        // The stage before is given back once all of the warpgroup's stores have read it.
        if (worker.lane == 0) {
          sm90::store_commit();
          sm90::store_wait_read<1>();
        }
        sm90::warpgroup_sync(1 + worker.group);
        if (square > 0) worker.release(shared, last);
        last = pipeline.stage;
        pipeline.next();
      }
      if (worker.lane == 0) sm90::store_wait_read<0>();
      sm90::warpgroup_sync(1 + worker.group);
      worker.release(shared, last);
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      dp[i] += __shfl_xor_sync(0xffffffffU, dp[i], 1);
      dp[i] += __shfl_xor_sync(0xffffffffU, dp[i], 2);
      const i64 r = row + worker.lane / 4 + 8 * i;
      if (worker.lane % 4 == 0 && r < place.row_end) args.dp_parts[r * args.parts + place.n] = dp[i];
    }
  }
  if (worker.lane == 0) sm90::store_wait_all();
}

// Input grad.

using InputShared = Shared<4, 2>;

__device__ void load_input_grad(const Sm90InputGrad& job, InputShared& shared, int tiles_n) {
  const auto rank = static_cast<int>(sm90::cluster_rank());
  TileScheduler scheduler(job.args.tiles, job.args.experts, kBackwardTileRows, tiles_n);
  StageFiller<InputShared> filler(shared);
  const int half_steps = tiles_of(job.args.width, kDepthRows);
  const i64 count = scheduler.count();
  for (i64 tile = blockIdx.x / kCluster; tile < count; tile += gridDim.x / kCluster) {
    const LayerTile place = scheduler.at(tile);
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int half = job.args.gated ? 0 : 1; half < 2; ++half) {
      const TmaWeight* const weight = job.weights + 2 * place.expert + half;
      sm90::tensor_map_acquire(&weight->map);
      for (int step = 0; step < half_steps; ++step) {
        std::byte* const stage = filler.next(kStageBytes);
        sm90::load_tile_2d(stage, &job.dz_maps[half], filler.full(), step * kDepthRows, row, sm90::kEvictNormal);
#pragma unroll
        for (int chunk = 2 * rank; chunk < 2 * rank + 2; ++chunk)
          load_stored_rows<kDepthRows, true>(stage + kABytes + chunk * kChunkBytes, weight, filler.full(),
                                             place.n * kBlockCols + chunk * kTileCols, step * kDepthRows,
                                             sm90::kEvictNormal);
      }
    }
  }
  filler.finish();
}

template <typename Element>
__device__ void input_grad_tiles(const Sm90InputGrad& job, InputShared& shared, int tiles_n) {
  const BackwardArgs& args = job.args;
  const Worker worker;
  TileScheduler scheduler(args.tiles, args.experts, kBackwardTileRows, tiles_n);
  const int steps = tiles_of(args.width, kDepthRows) * (args.gated ? 2 : 1);
  std::byte* const buffer = shared.out + (worker.group * 4 + worker.warp) * 2 * kSquareBytes;
  const RowsOut dx{args.dx, args.hidden, true};
  PipelineStage<InputShared::kStages> pipeline;
  const i64 count = scheduler.count();
  const i64 stride = gridDim.x / kCluster;
  i64 tile = blockIdx.x / kCluster;
  LayerTile next = tile < count ? scheduler.at(tile) : LayerTile{};
  while (tile < count) {
    const LayerTile place = next;
    tile += stride;
    float sums[128];
    multiply_steps<Element, 0>(
        sums, shared, pipeline, worker, steps, [](int, std::byte*) {},
        [&] {
          if (tile < count) next = scheduler.at(tile);
        });
#pragma unroll
    for (int square = 0; square < kChunks; ++square) {
      const int col = place.n * kBlockCols + square * kTileCols;
      if (col >= args.hidden) break;
      write_square<Element>({dx, &job.dx_map, args.hidden}, buffer + square % 2 * kSquareBytes,
                            place.row + worker.row(), place.row_end, col, [&](int i) { return sums[square * 32 + i]; });
    }
  }
  if (worker.lane == 0) sm90::store_wait_all();
}

// Weight grad.

using WeightShared = Shared<4, 2>;

/// The place of a cluster's tile of weight gradients.
struct GradTile {
  int expert, matrix;
  /// The first row and column.
  int m, n;
  i64 first;
  int tokens;
};

class GradScheduler {
 public:
  __device__ explicit GradScheduler(const Sm90WeightGrad& job)
      : job_(job),
        tiles_m_(tiles_of(job.m, kBackwardTileRows)),
        tiles_n_(tiles_of(job.n, kBlockCols)),
        per_expert_(job.matrices * tiles_m_ * tiles_n_) {}

  /// No tiles where splits are wrong.
  __device__ int count() const {
    return job_.args.tiles.status->fault == SplitFault::None ? job_.args.experts * per_expert_ : 0;
  }

  __device__ GradTile at(int tile) const {
    const int expert = tile / per_expert_;
    const TilePlace place = place_in_expert(expert, tile - expert * per_expert_, job_.matrices * tiles_m_, tiles_n_);
    const i64 first = __ldg(job_.args.tiles.first_row + expert);
    return {expert,
            place.m / tiles_m_,
            place.m % tiles_m_ * kBackwardTileRows,
            place.n * kBlockCols,
            first,
            static_cast<int>(__ldg(job_.args.tiles.first_row + expert + 1) - first)};
  }

 private:
  const Sm90WeightGrad& job_;
  int tiles_m_, tiles_n_, per_expert_;
};

__device__ void load_weight_grad(const Sm90WeightGrad& job, WeightShared& shared) {
  const auto rank = static_cast<int>(sm90::cluster_rank());
  const GradScheduler scheduler(job);
  StageFiller<WeightShared> filler(shared);
  const int count = scheduler.count();
  for (int tile = static_cast<int>(blockIdx.x) / kCluster; tile < count;
       tile += static_cast<int>(gridDim.x) / kCluster) {
    const GradTile place = scheduler.at(tile);
    const int steps = tiles_of(place.tokens, kDepthRows);
    for (int step = 0; step < steps; ++step) {
      std::byte* const stage = filler.next(kStageBytes);
      const int row = static_cast<int>(place.first) + step * kDepthRows;
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk)
        sm90::load_tile_2d(stage + chunk * kChunkBytes, &job.a_maps[place.matrix], filler.full(),
                           place.m + rank * kBlockRows + chunk * kTileCols, row, sm90::kEvictNormal);
#pragma unroll
      for (int chunk = 2 * rank; chunk < 2 * rank + 2; ++chunk)
        sm90::load_tile_2d_multicast(stage + kABytes + chunk * kChunkBytes, &job.b_map, filler.full(),
                                     place.n + chunk * kTileCols, row, 3, sm90::kEvictNormal);
    }
  }
  filler.finish();
}

/// Clears the rows of a stage that are not the expert's: they may hold anything, NaNs too.
__device__ inline void clear_rows(std::byte* stage, int first_row) {
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
  constexpr int kPieces = kTileRowBytes / 16;
  const int rows = kDepthRows - first_row;
  for (int i = thread; i < (2 + kChunks) * rows * kPieces; i += kConsumers * kWarpgroup) {
    const int chunk = i / (rows * kPieces);
    const int in_chunk = i - chunk * rows * kPieces;
    *reinterpret_cast<uint4*>(stage + chunk * kChunkBytes + first_row * kTileRowBytes + in_chunk * 16) = uint4{};
  }
  sm90::publish_shared();
  sm90::two_warpgroups_sync(1);
}

/// Where a warp's 16 rows of a gradient begin; looked up while the tensor cores work.
struct GradRows {
  const TmaWeight* out = nullptr;
  int block_rows = 0, box_rows = 0;
  int block = 0, in_block = 0;

  __device__ GradRows() = default;
  __device__ GradRows(const TmaWeight* to, int row)
      : out(to),
        block_rows(__ldg(&to->block_rows)),
        box_rows(__ldg(&to->box_rows)),
        block(row / block_rows),
        in_block(row - block * block_rows) {}
};

/// Stores a warp's 16 rows of a tile by TMA, in squares.
template <typename Element, int kSquares>
__device__ inline void store_grad_rows(const GradRows& place, std::byte* buffer, int row, int rows, int col, int cols,
                                       const float (&sums)[128]) {
#pragma unroll
  for (int square = 0; square < kChunks; ++square) {
    if (col + square * kTileCols >= cols) break;
    std::byte* const to = buffer + square % kSquares * kSquareBytes;
    const uint32_t base = sm90::shared_address(to);
    if (threadIdx.x % 32 == 0) sm90::store_wait_read<kSquares - 1>();
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk < kTileCols / 8; chunk += 2) {
      const float* const v = sums + square * 32 + chunk * 4;
      sm90::store_matrices(square_address(base, chunk), pack<Element>(v[0], v[1]), pack<Element>(v[2], v[3]),
                           pack<Element>(v[4], v[5]), pack<Element>(v[6], v[7]));
    }
    sm90::publish_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      int block = place.block;
      int in_block = place.in_block;
      for (int r = 0; r < kStoreRows && row + r < rows; r += place.box_rows) {
        sm90::store_tile_3d(&place.out->map, to + r * kSquareRowBytes, col + square * kTileCols, in_block, block);
        in_block += place.box_rows;
        if (in_block >= place.block_rows) {
          in_block = 0;
          ++block;
        }
      }
      sm90::store_commit();
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
                                        const float (&sums)[128]) {
  const i64 element_bytes = grad.dtype == Dtype::F32 ? 4 : 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + lane / 4 + half * 8;
    if (r >= grad.rows) continue;
    auto* const to = const_cast<std::byte*>(stored_row(grad, r).data);
#pragma unroll
    for (int j = 0; j < kBlockCols / 8; ++j) {
      const int c = col + j * 8 + lane % 4 * 2;
      if (c < grad.cols)
        store_pair<Element>(to + c * element_bytes, grad.dtype, accumulate, sums[j * 4 + half * 2],
                            sums[j * 4 + half * 2 + 1]);
    }
  }
}

template <typename Element>
__device__ void weight_grad_tiles(const Sm90WeightGrad& job, WeightShared& shared) {
  const Worker worker;
  const GradScheduler scheduler(job);
  constexpr int kSquares = WeightShared::kSquares;
  std::byte* const buffer = shared.out + (worker.group * 4 + worker.warp) * kSquares * kSquareBytes;
  PipelineStage<WeightShared::kStages> pipeline;
  const int count = scheduler.count();
  const int stride = static_cast<int>(gridDim.x) / kCluster;
  int tile = static_cast<int>(blockIdx.x) / kCluster;
  GradTile next = tile < count ? scheduler.at(tile) : GradTile{};
  while (tile < count) {
    const GradTile place = next;
    tile += stride;
    const int table = place.expert * kMlpMatrices + static_cast<int>(job.which[place.matrix]);
    const int row = place.m + worker.row();
    const int steps = tiles_of(place.tokens, kDepthRows);
    const int rest = place.tokens % kDepthRows;
    float sums[128];
    GradRows rows;
    const auto look_up = [&] {
      if (tile < count) next = scheduler.at(tile);
      if (job.out != nullptr) rows = GradRows(job.out + table, row);
    };
    multiply_steps<Element, 1>(
        sums, shared, pipeline, worker, steps,
        [&](int step, std::byte* stage) {
          if (rest > 0 && step == steps - 1) clear_rows(stage, rest);
        },
        look_up);
    if (steps == 0) {
      look_up();
      if (job.args.accumulate) continue;
#pragma unroll
      for (float& sum : sums) sum = 0;
    }
    if (job.out != nullptr) {
      if (row < job.m) store_grad_rows<Element, kSquares>(rows, buffer, row, job.m, place.n, job.n, sums);
    } else {
      store_grad_pairs<Element>(job.args.grads[table], job.args.accumulate, row, place.n, worker.lane, sums);
    }
  }
  if (worker.lane == 0) sm90::store_wait_all();
}

/// Prepares the barriers, and gives the roles to the warpgroups.
template <typename SharedType, typename Load, typename Multiply>
__device__ inline void run_block(SharedType& shared, const Load& load, const Multiply& multiply) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < SharedType::kStages; ++i) {
      sm90::barrier_init(&shared.full[i], 1);
      sm90::barrier_init(&shared.empty[i], kConsumers * kCluster);
    }
    sm90::barrier_init_fence();
  }
  sm90::cluster_sync();
  if (threadIdx.x < kWarpgroup) {
    sm90::give_registers<40>();
    if (threadIdx.x == 0) load();
  } else {
    sm90::take_registers<232>();
    multiply();
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define GLU_HOPPER_ONLY(body) body
#else
#define GLU_HOPPER_ONLY(body) __trap()
#endif

template <typename Element, bool kGated>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_derive(const __grid_constant__ Sm90Derive job, int tiles_n) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<DeriveShared*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_derive<kGated>(job, shared, tiles_n); },
      [&] { derive_tiles<Element, kGated>(job, shared, tiles_n); }));
}

template <typename Element>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_input_grad(const __grid_constant__ Sm90InputGrad job, int tiles_n) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<InputShared*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_input_grad(job, shared, tiles_n); },
      [&] { input_grad_tiles<Element>(job, shared, tiles_n); }));
}

template <typename Element>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_weight_grad(const __grid_constant__ Sm90WeightGrad job, int) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<WeightShared*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_weight_grad(job, shared); }, [&] { weight_grad_tiles<Element>(job, shared); }));
}

#undef GLU_HOPPER_ONLY

template <typename SharedType, typename Job>
void launch(void (*kernel)(Job, int), const char* name, const Job& job, int tiles_n, int multiprocessors,
            GpuStream stream) {
  constexpr int kBytes = static_cast<int>(sizeof(SharedType));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<static_cast<unsigned>(multiprocessors / kCluster * kCluster), kThreads, kBytes, stream>>>(job, tiles_n);
  check_launch(name, [&] {
    return std::to_string(job.args.experts) + " experts, " + std::to_string(job.args.rows) + " rows, H " +
           std::to_string(job.args.hidden) + ", F " + std::to_string(job.args.width);
  });
}

int host_tiles(i32 size) { return (size + kBlockCols - 1) / kBlockCols; }

}  // namespace

void launch_sm90_derive(const Sm90Derive& job, int multiprocessors, GpuStream stream) {
  const bool bf16 = job.args.dtype == Dtype::BF16;
  const auto kernel = job.args.gated ? (bf16 ? sm90_derive<__nv_bfloat16, true> : sm90_derive<__half, true>)
                                     : (bf16 ? sm90_derive<__nv_bfloat16, false> : sm90_derive<__half, false>);
  launch<DeriveShared>(kernel, "sm90_derive", job, host_tiles(job.args.width), multiprocessors, stream);
}

void launch_sm90_input_grad(const Sm90InputGrad& job, int multiprocessors, GpuStream stream) {
  const auto kernel = job.args.dtype == Dtype::BF16 ? sm90_input_grad<__nv_bfloat16> : sm90_input_grad<__half>;
  launch<InputShared>(kernel, "sm90_input_grad", job, host_tiles(job.args.hidden), multiprocessors, stream);
}

void launch_sm90_weight_grad(const Sm90WeightGrad& job, int multiprocessors, GpuStream stream) {
  const auto kernel = job.args.dtype == Dtype::BF16 ? sm90_weight_grad<__nv_bfloat16> : sm90_weight_grad<__half>;
  launch<WeightShared>(kernel, "sm90_weight_grad", job, 0, multiprocessors, stream);
}

}  // namespace glu_ckpt
