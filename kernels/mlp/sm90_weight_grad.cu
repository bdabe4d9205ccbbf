/// Weight gradients: dW = A^T B, where an expert's rows are the axis that is summed over.
///
/// The two warpgroups of a block make tiles of 128 x 192 of their own, and take turns with the tensor cores
/// ("ping-pong"): while one multiplies, the results of the other leave. Where an expert has few rows, a tile has few
/// steps and much to write, and writing would take as long as multiplying. The two blocks of a cluster work on
/// neighbouring rows of dW and share the columns, of which each loads half for both.

#include "kernels/grouped_gemm/linear_tiles.hpp"
#include "kernels/mlp/sm90_backward_block.cuh"
#include "kernels/mlp/stored_element.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

constexpr int kGradCols = 192;
constexpr int kChunks = kGradCols / kTileCols;
/// Of WGMMA's 64 rows.
constexpr int kParts = kBlockRows / 64;
constexpr int kPartSums = kGradCols / 2;
using Sums = float[kParts][kPartSums];
constexpr int kStageBytes = kABytes + kChunks * kChunkBytes;
/// What each block of a cluster loads of a square of B.
constexpr int kHalfChunkBytes = kHalfDepthRows * kTileRowBytes;
static_assert(kHalfDepthRows * kCluster == kDepthRows);

/// One warpgroup of each block gives a stage back.
struct Shared : BackwardStages<4, kStageBytes, 4, kCluster> {
  /// Each ends a phase when the other warpgroup has left it the tensor cores.
  uint64_t turn[kConsumers];

  __device__ void init() {
    BackwardStages::init();
    for (uint64_t& barrier : turn) barrier_init(&barrier, 1);
  }
};
using Pipeline = PipelineStage<Shared::kStages>;

/// The place of a cluster's tile of weight gradients.
struct GradTile {
  int expert, matrix;
  /// The first row and column.
  int m, n;
  i64 first;
  int tokens;

  __device__ int steps() const { return tiles_of(tokens, kDepthRows); }
};

class GradScheduler {
 public:
  __device__ explicit GradScheduler(const Sm90WeightGrad& job)
      : job_(job),
        tiles_m_(tiles_of(job.m, kBackwardTileRows)),
        tiles_n_(tiles_of(job.n, kGradCols)),
        per_expert_(job.matrices * tiles_m_ * tiles_n_) {}

  /// No tiles where splits are wrong.
  __device__ int count() const {
    return job_.args.tiles.status->fault == SplitFault::None ? job_.args.experts * per_expert_ : 0;
  }

  __device__ GradTile at(int tile) const {
    const int expert = tile / per_expert_;
    const TilePlace place = place_in_expert(expert, tile - expert * per_expert_, job_.matrices * tiles_m_, tiles_n_);
    const i64 first = __ldg(job_.args.tiles.first_row + expert);
    return {expert, place.m / tiles_m_, place.m % tiles_m_ * kBackwardTileRows, place.n * kGradCols,
            first,  tokens(expert)};
  }

  /// Of a tile, or 0 where there is none of this number.
  __device__ int steps(int tile) const { return tile < count() ? tiles_of(tokens(tile / per_expert_), kDepthRows) : 0; }

 private:
  __device__ int tokens(int expert) const {
    const i64* const first = job_.args.tiles.first_row + expert;
    return static_cast<int>(__ldg(first + 1) - __ldg(first));
  }

  const Sm90WeightGrad& job_;
  int tiles_m_, tiles_n_, per_expert_;
};

__device__ inline int first_tile() { return static_cast<int>(blockIdx.x) / kCluster; }
__device__ inline int tile_stride() { return static_cast<int>(gridDim.x) / kCluster; }

__device__ void load_weight_grad(const Sm90WeightGrad& job, Shared& shared) {
  const auto rank = static_cast<int>(cluster_rank());
  const GradScheduler scheduler(job);
  StageFiller<Shared> filler(shared);
  const int count = scheduler.count();
  for (int tile = first_tile(); tile < count; tile += tile_stride()) {
    const GradTile place = scheduler.at(tile);
    const int steps = place.steps();
    for (int step = 0; step < steps; ++step) {
      std::byte* const stage = filler.next(kStageBytes);
      const int row = static_cast<int>(place.first) + step * kDepthRows;
#pragma unroll
      for (int chunk = 0; chunk < kParts; ++chunk)
        load_tile_2d(stage + chunk * kChunkBytes, &job.a_maps[place.matrix], filler.full(),
                     place.m + rank * kBlockRows + chunk * kTileCols, row, kEvictNormal);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk)
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
  for (int i = worker.thread; i < (kParts + kChunks) * rows * kPieces; i += kWarpgroup) {
    const int chunk = i / (rows * kPieces);
    const int in_chunk = i - chunk * rows * kPieces;
    *reinterpret_cast<uint4*>(stage + chunk * kChunkBytes + first_row * kTileRowBytes + in_chunk * 16) = uint4{};
  }
  publish_shared();
  warpgroup_sync(1 + worker.group);
}

/// Takes the stages of a tile into the sums, and gives each back. `meanwhile` is called while the first step's products
/// are made.
template <typename Element, typename Meanwhile>
__device__ inline void multiply_tile(Sums& sums, Shared& shared, Pipeline& pipeline, const Worker& worker,
                                     const GradTile& place, const Meanwhile& meanwhile) {
  const int steps = place.steps();
  const int rest = place.tokens % kDepthRows;
  int last = 0;
  for (int step = 0; step < steps; ++step, pipeline.next()) {
    std::byte* const stage = shared.stages[pipeline.stage];
    barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
    if (rest > 0 && step == steps - 1) clear_rows(stage, rest, worker);
    const uint64_t a = transposed_descriptor(stage, kChunkBytes);
    const uint64_t b = transposed_descriptor(stage + kABytes, kChunkBytes);
    mma_fence();
#pragma unroll
    for (int k = 0; k < kDepthRows / 16; ++k)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        multiply_add<Element, kGradCols, 1, 1>(
            sums[part], a + static_cast<uint64_t>(k) * kTransposedStep + static_cast<uint64_t>(part * kChunkBytes >> 4),
            b + static_cast<uint64_t>(k) * kTransposedStep, step > 0 || k > 0 ? 1 : 0);
    mma_commit();
    // The step before has ended once this one alone is under way.
    mma_wait<1>();
    if (step > 0) worker.release(shared, last);
    last = pipeline.stage;
    if (step == 0) meanwhile();
  }
  if (steps == 0) meanwhile();
  // The other's first products queue behind this one's last.
  if (worker.thread == 0) barrier_arrive(&shared.turn[1 - worker.group]);
  mma_wait<0>();
  if (steps > 0) worker.release(shared, last);
}

/// Where rows of dW are stored: blocks of `block_rows`, whose rows TMA stores `box_rows` at a time.
struct GradRows {
  const TmaWeight& out;
  int block_rows, box_rows;
  /// Rows and columns of dW.
  int rows, cols;

  __device__ GradRows(const Sm90WeightGrad& job, int table)
      : out(job.out[table]),
        block_rows(uniform(__ldg(&out.block_rows))),
        box_rows(uniform(__ldg(&out.box_rows))),
        rows(job.m),
        cols(job.n) {}

  /// Stores a square of 16 rows from `row` on, which is row `in_block` of `block`.
  __device__ void store(const std::byte* square, int row, int block, int in_block, int col) const {
    for (int r = 0; r < kStoreRows && row + r < rows; r += box_rows) {
      store_tile_3d(&out.map, square + r * kSquareRowBytes, col, in_block, block);
      in_block += box_rows;
      if (in_block >= block_rows) {
        in_block = 0;
        ++block;
      }
    }
  }
};

/// Stores a warp's rows of a tile, from `row` on 16 of each part, by TMA. Squares leave in pairs, by way of two places
/// that take turns; `pair` is the one that comes next.
template <typename Element>
__device__ inline void store_grad_rows(const GradRows& out, std::byte* buffer, int& pair, int row, int col,
                                       const Sums& sums) {
  static_assert(kParts * kChunks % 2 == 0 && Shared::kSquares == 4);
  int block[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) block[part] = (row + part * 64) / out.block_rows;
#pragma unroll
  for (int first = 0; first < kParts * kChunks; first += 2, pair ^= 1) {
    std::byte* const to = buffer + pair * 2 * kSquareBytes;
    // The other pair's store may still be under way, this one's is not.
    if (is_elected()) store_wait_read<1>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t square = shared_address(to) + static_cast<uint32_t>(i * kSquareBytes);
#pragma unroll
      for (int chunk = 0; chunk < kTileCols / 8; chunk += 2) {
        const float* const v = sums[(first + i) / kChunks] + (first + i) % kChunks * 32 + chunk * 4;
        store_matrices(square_address(square, chunk), pack<Element>(v[0], v[1]), pack<Element>(v[2], v[3]),
                       pack<Element>(v[4], v[5]), pack<Element>(v[6], v[7]));
      }
    }
    publish_shared();
    __syncwarp();
    if (is_elected()) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int part = (first + i) / kChunks;
        const int part_row = row + part * 64;
        const int square_col = col + (first + i) % kChunks * kTileCols;
        if (square_col < out.cols)
          out.store(to + i * kSquareBytes, part_row, block[part], part_row - block[part] * out.block_rows, square_col);
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
    for (int j = 0; j < kGradCols / 8; ++j) {
      const int c = col + j * 8 + lane % 4 * 2;
      if (c < grad.cols)
        store_pair<Element>(to + c * element_bytes, grad.dtype, accumulate, sums[j * 4 + half * 2],
                            sums[j * 4 + half * 2 + 1]);
    }
  }
}

template <typename Element>
__device__ void weight_grad_tiles(const Sm90WeightGrad& job, Shared& shared) {
  const Worker worker;
  const GradScheduler scheduler(job);
  std::byte* const buffer = shared.out_of(worker.group, worker.warp);
  int pair = 0;
  Pipeline pipeline;
  const int count = scheduler.count();
  const int stride = tile_stride();
  // The first warpgroup takes the first tile and every second one, and need not wait the first time.
  uint32_t turn_parity = worker.group == 0 ? 1 : 0;
  if (worker.group == 1) pipeline.skip(uniform(scheduler.steps(first_tile())));
  int tile = first_tile() + worker.group * stride;
  const auto place_of = [&](int number) {
    GradTile place = number < count ? scheduler.at(number) : GradTile{};
    place.tokens = uniform(place.tokens);
    return place;
  };
  GradTile next = place_of(tile);
  while (tile < count) {
    const GradTile place = next;
    int others = 0;
    Sums sums;
    barrier_wait(&shared.turn[worker.group], turn_parity);
    turn_parity ^= 1;
    multiply_tile<Element>(sums, shared, pipeline, worker, place, [&] {
      others = uniform(scheduler.steps(tile + stride));
      tile += kConsumers * stride;
      next = place_of(tile);
    });
    pipeline.skip(others);
    if (place.tokens == 0) {
      if (job.args.accumulate) continue;
#pragma unroll
      for (float(&part)[kPartSums] : sums)
#pragma unroll
        for (float& sum : part) sum = 0;
    }
    const int table = place.expert * kMlpMatrices + static_cast<int>(job.which[place.matrix]);
    const int row = place.m + worker.rank * kBlockRows + worker.warp * kStoreRows;
    if (job.out != nullptr) {
      store_grad_rows<Element>(GradRows(job, table), buffer, pair, row, place.n, sums);
      continue;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      store_grad_pairs<Element>(job.args.grads[table], job.args.accumulate, row + part * 64, place.n, worker.lane,
                                sums[part]);
  }
  if (is_elected()) store_wait_all();
}

template <typename Element>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_weight_grad(const __grid_constant__ Sm90WeightGrad job, int) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_weight_grad(job, shared); }, [&] { weight_grad_tiles<Element>(job, shared); }));
}

#undef GLU_HOPPER_ONLY

}  // namespace

void launch_sm90_weight_grad(const Sm90WeightGrad& job, int multiprocessors, GpuStream stream) {
  const auto kernel = job.args.dtype == Dtype::BF16 ? sm90_weight_grad<__nv_bfloat16> : sm90_weight_grad<__half>;
  launch<Shared>(kernel, "sm90_weight_grad", job, 0, multiprocessors, stream);
}

}  // namespace glu_ckpt
