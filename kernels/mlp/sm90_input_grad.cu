/// The gradient of the input, in tiles of 128 x 256 a block. The two blocks of a cluster work on neighbouring rows and
/// share the columns, of which each loads half for both: as sm90_grouped_gemm.cu.

#include "kernels/mlp/sm90_block.cuh"
#include "kernels/mlp/write_square.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

constexpr int kBlockCols = 256;
constexpr int kChunks = kBlockCols / kTileCols;
constexpr int kStageBytes = kABytes + kChunks * kChunkBytes;

/// Both warpgroups of both blocks give a stage back.
template <int kStages, int kSquares>
using Shared = BlockStages<kStages, kStageBytes, kSquares, kConsumers * kCluster>;

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
      const StoredRowsLoader weight(job.weights + 2 * place.expert + half);
      weight.open();
      StoredRowsLoader::Place rows = weight.at(0);
      for (int step = 0; step < half_steps; ++step) {
        std::byte* const stage = filler.next(kStageBytes);
        load_tile_2d(stage, &job.dz_maps[half], filler.full(), step * kDepthRows, row, kEvictNormal);
        weight.load<kDepthRows, kChunks / kCluster, true>(
            stage + kABytes + rank * kChunks / kCluster * kChunkBytes, filler.full(),
            place.n * kBlockCols + rank * kBlockCols / kCluster, rows, kEvictNormal);
        rows = weight.after<kDepthRows>(rows);
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

void launch_sm90_input_grad(const Sm90InputGrad& job, int multiprocessors, GpuStream stream) {
  const auto kernel = job.args.dtype == Dtype::BF16 ? sm90_input_grad<__nv_bfloat16> : sm90_input_grad<__half>;
  launch<InputShared>(kernel, "sm90_input_grad", job, host_tiles(job.args.hidden), multiprocessors, stream);
}

}  // namespace glu_ckpt
