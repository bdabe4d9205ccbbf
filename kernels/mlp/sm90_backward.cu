/// The derivative and the gradient of the input, in tiles of 128 x 256 a block. The two blocks of a cluster work on
/// neighbouring rows and share the columns, of which each loads half for both: as sm90_grouped_gemm.cu.

#include "kernels/mlp/derivative.cuh"
#include "kernels/mlp/sm90_backward_block.cuh"
#include "kernels/mlp/write_square.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

constexpr int kBlockCols = 256;
constexpr int kChunks = kBlockCols / kTileCols;
constexpr int kStageBytes = kABytes + kChunks * kChunkBytes;
static_assert(kBlockCols == kSm90PartCols);

/// Both warpgroups of both blocks give a stage back.
template <int kStages, int kSquares>
using Shared = BackwardStages<kStages, kStageBytes, kSquares, kConsumers * kCluster>;

/// Adds a stage's products to a warpgroup's sums of 64 x 256.
template <typename Element>
__device__ inline void multiply_stage(float (&sums)[128], const std::byte* stage, int group, bool keep) {
  const uint64_t a = tile_descriptor(stage + group * kChunkBytes);
  const uint64_t b = transposed_descriptor(stage + kABytes, kChunkBytes);
#pragma unroll
  for (int k = 0; k < kDepthRows / 16; ++k)
    multiply_add<Element, kBlockCols, 0, 1>(sums, a + static_cast<uint64_t>(k) * 2,
                                            b + static_cast<uint64_t>(k) * kTransposedStep, keep || k > 0 ? 1 : 0);
}

/// Takes `steps` stages into the sums, and gives each back. `meanwhile` is called while the first step's products are
/// made.
template <typename Element, typename SharedType, typename Meanwhile>
__device__ inline void multiply_steps(float (&sums)[128], SharedType& shared,
                                      PipelineStage<SharedType::kStages>& pipeline, const Worker& worker, int steps,
                                      const Meanwhile& meanwhile) {
  int last = 0;
  for (int step = 0; step < steps; ++step, pipeline.next()) {
    barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
    mma_fence();
    multiply_stage<Element>(sums, shared.stages[pipeline.stage], worker.group, step > 0);
    mma_commit();
    // The step before has ended once this one alone is under way.
    mma_wait<1>();
    if (step > 0) worker.release(shared, last);
    last = pipeline.stage;
    if (step == 0) meanwhile();
  }
  mma_wait<0>();
  if (steps > 0) worker.release(shared, last);
}

// Derive.

using DeriveShared = Shared<4, 0>;

/// 64-column squares of a tile that lie within F.
__device__ inline int squares_of(int width, int n) { return min(kChunks, tiles_of(width - n * kBlockCols, kTileCols)); }

template <bool kGated>
__device__ void load_derive(const Sm90Derive& job, DeriveShared& shared, int tiles_n) {
  const auto rank = static_cast<int>(cluster_rank());
  TileScheduler scheduler(job.args.tiles, job.args.experts, kBackwardTileRows, tiles_n);
  StageFiller<DeriveShared> filler(shared);
  const int steps = tiles_of(job.args.hidden, kDepthRows);
  const i64 count = scheduler.count();
  for (i64 tile = blockIdx.x / kCluster; tile < count; tile += gridDim.x / kCluster) {
    const LayerTile place = scheduler.at(tile);
    const TmaWeight* const down = job.down + place.expert;
    tensor_map_acquire(&down->map);
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int step = 0; step < steps; ++step) {
      std::byte* const stage = filler.next(kStageBytes);
      load_tile_2d(stage, &job.dout_map, filler.full(), step * kDepthRows, row, kEvictNormal);
#pragma unroll
      for (int chunk = 2 * rank; chunk < 2 * rank + 2; ++chunk)
        load_stored_rows<kDepthRows, true>(stage + kABytes + chunk * kChunkBytes, down, filler.full(),
                                           place.n * kBlockCols + chunk * kTileCols, step * kDepthRows, kEvictNormal);
    }
    // z comes through the same stages, one square a stage, so that it is there when the sums are.
    for (int square = 0; square < squares_of(job.args.width, place.n); ++square) {
      std::byte* const stage = filler.next(kGated ? 2 * kABytes : kABytes);
      const int col = place.n * kBlockCols + square * kTileCols;
      if constexpr (kGated) load_tile_2d(stage, &job.z_maps[0], filler.full(), col, row, kEvictFirst);
      load_tile_2d(stage + kABytes, &job.z_maps[1], filler.full(), col, row, kEvictFirst);
    }
  }
  filler.finish();
}

/// Makes da, du and y of a warp's 16 x 64 sums in the place of z: gate's rows, up's, and behind them y's.
template <typename Element, Formula kFormula, bool kGated, typename Sum>
__device__ inline void derive_square(const Activation& activation, std::byte* stage, const float (&p)[2],
                                     float (&dp)[2], const Sum& sum) {
  const uint32_t gate_base = shared_address(stage);
  const uint32_t up_base = gate_base + kABytes;
  const uint32_t y_base = gate_base + 2 * kABytes;
#pragma unroll
  for (int chunk = 0; chunk < kTileCols / 8; chunk += 2) {
    uint32_t a[4] = {};
    uint32_t u[4];
    uint32_t y[4];
    if constexpr (kGated) load_matrices(square_address(gate_base, chunk), a);
    load_matrices(square_address(up_base, chunk), u);
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
    if constexpr (kGated) store_matrices(square_address(gate_base, chunk), a[0], a[1], a[2], a[3]);
    store_matrices(square_address(up_base, chunk), u[0], u[1], u[2], u[3]);
    store_matrices(square_address(y_base, chunk), y[0], y[1], y[2], y[3]);
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
  LayerTile next = tile < count ? glu_ckpt::uniform(scheduler.at(tile)) : LayerTile{};
  while (tile < count) {
    const LayerTile place = next;
    const i64 row = place.row + worker.row();
    const float p[2] = {rounded_probability<Element>(args.probs, row + worker.lane / 4, place.row_end),
                        rounded_probability<Element>(args.probs, row + worker.lane / 4 + 8, place.row_end)};
    tile += stride;
    float sums[128];
    multiply_steps<Element>(sums, shared, pipeline, worker, steps, [&] {
      if (tile < count) next = glu_ckpt::uniform(scheduler.at(tile));
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
        barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
        derive_square<Element, kFormula, kGated>(args.activation, own, p, dp,
                                                 [&](int i) { return sums[square * 32 + i]; });
        publish_shared();
        __syncwarp();
        if constexpr (kGated) store_square<Element>({da, &job.dz_maps[0], args.width}, own, row, place.row_end, col);
        store_square<Element>({du, &job.dz_maps[1], args.width}, own + kABytes, row, place.row_end, col);
        store_square<Element>({y, &job.y_map, args.width}, own + 2 * kABytes, row, place.row_end, col);
        // The stage before is given back once all of the warpgroup's stores have read it.
        if (is_elected()) {
          store_commit();
          store_wait_read<1>();
        }
        warpgroup_sync(1 + worker.group);
        if (square > 0) worker.release(shared, last);
        last = pipeline.stage;
        pipeline.next();
      }
      if (is_elected()) store_wait_read<0>();
      warpgroup_sync(1 + worker.group);
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
  if (is_elected()) store_wait_all();
}

// Input grad.

using InputShared = Shared<4, 2>;

__device__ void load_input_grad(const Sm90InputGrad& job, InputShared& shared, int tiles_n) {
  const auto rank = static_cast<int>(cluster_rank());
  TileScheduler scheduler(job.args.tiles, job.args.experts, kBackwardTileRows, tiles_n);
  StageFiller<InputShared> filler(shared);
  const int half_steps = tiles_of(job.args.width, kDepthRows);
  const i64 count = scheduler.count();
  for (i64 tile = blockIdx.x / kCluster; tile < count; tile += gridDim.x / kCluster) {
    const LayerTile place = scheduler.at(tile);
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int half = job.args.gated ? 0 : 1; half < 2; ++half) {
      const TmaWeight* const weight = job.weights + 2 * place.expert + half;
      tensor_map_acquire(&weight->map);
      for (int step = 0; step < half_steps; ++step) {
        std::byte* const stage = filler.next(kStageBytes);
        load_tile_2d(stage, &job.dz_maps[half], filler.full(), step * kDepthRows, row, kEvictNormal);
#pragma unroll
        for (int chunk = 2 * rank; chunk < 2 * rank + 2; ++chunk)
          load_stored_rows<kDepthRows, true>(stage + kABytes + chunk * kChunkBytes, weight, filler.full(),
                                             place.n * kBlockCols + chunk * kTileCols, step * kDepthRows, kEvictNormal);
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
  std::byte* const buffer = shared.out_of(worker.group, worker.warp);
  const RowsOut dx{args.dx, args.hidden, true};
  PipelineStage<InputShared::kStages> pipeline;
  const i64 count = scheduler.count();
  const i64 stride = gridDim.x / kCluster;
  i64 tile = blockIdx.x / kCluster;
  LayerTile next = tile < count ? glu_ckpt::uniform(scheduler.at(tile)) : LayerTile{};
  while (tile < count) {
    const LayerTile place = next;
    tile += stride;
    float sums[128];
    multiply_steps<Element>(sums, shared, pipeline, worker, steps, [&] {
      if (tile < count) next = glu_ckpt::uniform(scheduler.at(tile));
    });
#pragma unroll
    for (int square = 0; square < kChunks; ++square) {
      const int col = place.n * kBlockCols + square * kTileCols;
      if (col >= args.hidden) break;
      write_square<Element>({dx, &job.dx_map, args.hidden}, buffer + square % 2 * kSquareBytes,
                            place.row + worker.row(), place.row_end, col, [&](int i) { return sums[square * 32 + i]; });
    }
  }
  if (is_elected()) store_wait_all();
}

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

#undef GLU_HOPPER_ONLY

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

}  // namespace glu_ckpt
