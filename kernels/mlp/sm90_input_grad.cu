/// The gradient of the input, dx = dz W1, by one of two kernels: layer_tiles.hpp says which. In one the two warpgroups
/// of a block take turns with tiles of 128 x 192 of their own, and results leave while the other multiplies. In the
/// other they share a tile of 128 x 256, which reads less for each product, but nothing multiplies while its results
/// leave. Both add the same products in the same order: their results have the same bits.

#include "kernels/mlp/sm90_ping_pong.cuh"
#include "kernels/mlp/write_square.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

static_assert(kPingPongCols == kInputGradTurnCols);
constexpr int kJointCols = kInputGradJointCols;
using TurnShared = PingPongStages<5, 1>;
constexpr int kJointChunks = kJointCols / kTileCols;
constexpr int kJointSquares = 2;
/// Both warpgroups of both blocks give a stage back.
using JointShared = BlockStages<4, kABytes + kJointCols * kTileRowBytes, kJointSquares, kConsumers * kCluster>;

/// Loads tiles of kChunks times kTileCols columns. Rows of dz are read again by each tile along the columns, so L2 is
/// to keep them. Weights may not go first: the heights of an expert read them at about the same time, not at the same.
template <int kChunks, typename SharedType>
__device__ void load_input_grad(const Sm90InputGrad& job, SharedType& shared, int tiles_n) {
  const auto rank = static_cast<int>(cluster_rank());
  TileScheduler scheduler(job.args.tiles, job.args.experts, kBackwardTileRows, tiles_n);
  StageFiller<SharedType> filler(shared);
  const int half_steps = tiles_of(job.args.width, kDepthRows);
  const i64 count = scheduler.count();
  for (auto rounds = cluster_rounds(); rounds.tile() < count; rounds.next()) {
    const LayerTile place = scheduler.at(rounds.tile());
    const int row = static_cast<int>(place.row) + rank * kBlockRows;
    for (int half = job.args.gated ? 0 : 1; half < 2; ++half) {
      const StoredRowsLoader weight(job.weights + 2 * place.expert + half);
      weight.open();
      StoredRowsLoader::Place rows = weight.at(rank * kHalfDepthRows);
      for (int step = 0; step < half_steps; ++step) {
        std::byte* const stage = filler.next(SharedType::kStageBytes);
        load_tile_2d(stage, &job.dz_maps[half], filler.full(), step * kDepthRows, row, kEvictLast);
        weight.load<kHalfDepthRows, kChunks, true>(stage + kABytes + rank * kHalfChunkBytes, filler.full(),
                                                   place.n * kChunks * kTileCols, rows, kEvictNormal);
        rows = weight.after<kDepthRows>(rows);
      }
    }
  }
  filler.finish();
}

/// Writes a warp's 16 rows of a tile, from `row` on, in squares that take turns in kBuffers.
template <typename Element, int kChunks, int kBuffers>
__device__ inline void write_rows(const Sm90InputGrad& job, std::byte* buffers, const LayerTile& place, i64 row,
                                  const float (&sums)[kChunks * kTileCols / 2]) {
  const RowsOut dx{job.args.dx, job.args.hidden, true};
#pragma unroll
  for (int square = 0; square < kChunks; ++square) {
    const int col = (place.n * kChunks + square) * kTileCols;
    if (col >= job.args.hidden) break;
    write_square<Element, kTileCols, kBuffers>({dx, &job.dx_map, job.args.hidden},
                                               buffers + square % kBuffers * kSquareBytes, row, place.row_end, col,
                                               [&](int i) { return sums[square * (kTileCols / 2) + i]; });
  }
}

template <typename Element>
__device__ void multiply_in_turn(const Sm90InputGrad& job, TurnShared& shared, int tiles_n) {
  const BackwardArgs& args = job.args;
  const Worker worker;
  TurnTiles tiles(args, tiles_n, worker.group);
  const int steps = tiles_of(args.width, kDepthRows) * (args.gated ? 2 : 1);
  std::byte* const buffer = shared.out_of(worker.group, worker.warp);
  PingPong ping_pong(shared, worker);
  while (tiles.take()) {
    const LayerTile place = tiles.place();
    PingPongSums sums;
    with_cols<kPingPongCols>(args.hidden - place.n * kPingPongCols, [&](auto cols) {
      const auto multiply = [&](const std::byte* stage, int step) {
        multiply_stage<Element, 0, 1, decltype(cols)::value>(sums, stage, step > 0);
      };
      ping_pong.take_turn(
          tiles.is_first() ? 0 : steps, steps, [&] { tiles.look_ahead(); }, multiply);
    });
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      write_rows<Element, kPingPongChunks, 1>(
          job, buffer, place, place.row + worker.rank * kBlockRows + part * 64 + worker.warp * kStoreRows, sums[part]);
  }
  if (is_elected()) store_wait_all();
}

/// Adds a stage's products to a warpgroup's sums of 64 x kJointCols.
template <typename Element>
__device__ inline void multiply_joint_stage(float (&sums)[kJointCols / 2], const std::byte* stage, int group,
                                            bool keep) {
  const uint64_t a = tile_descriptor(stage + group * kChunkBytes);
  const uint64_t b = transposed_descriptor(stage + kABytes, kChunkBytes);
#pragma unroll
  for (int k = 0; k < kDepthRows / 16; ++k)
    multiply_add<Element, kJointCols, 0, 1>(sums, a + static_cast<uint64_t>(k) * 2,
                                            b + static_cast<uint64_t>(k) * kTransposedStep, keep || k > 0 ? 1 : 0);
}

/// Takes `steps` stages into the sums, and gives each back. `meanwhile` is called while the first step's products are
/// made.
template <typename Element, typename Meanwhile>
__device__ inline void multiply_steps(float (&sums)[kJointCols / 2], JointShared& shared,
                                      PipelineStage<JointShared::kStages>& pipeline, const Worker& worker, int steps,
                                      const Meanwhile& meanwhile) {
  int last = 0;
  for (int step = 0; step < steps; ++step, pipeline.next()) {
    barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
    mma_fence();
    multiply_joint_stage<Element>(sums, shared.stages[pipeline.stage], worker.group, step > 0);
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

template <typename Element>
__device__ void multiply_jointly(const Sm90InputGrad& job, JointShared& shared, int tiles_n) {
  const BackwardArgs& args = job.args;
  const Worker worker;
  TileScheduler scheduler(args.tiles, args.experts, kBackwardTileRows, tiles_n);
  const int steps = tiles_of(args.width, kDepthRows) * (args.gated ? 2 : 1);
  std::byte* const buffers = shared.out_of(worker.group, worker.warp);
  PipelineStage<JointShared::kStages> pipeline;
  const i64 count = scheduler.count();
  auto rounds = cluster_rounds();
  LayerTile next = rounds.tile() < count ? glu_ckpt::uniform(scheduler.at(rounds.tile())) : LayerTile{};
  while (rounds.tile() < count) {
    const LayerTile place = next;
    rounds.next();
    float sums[kJointCols / 2];
    multiply_steps<Element>(sums, shared, pipeline, worker, steps, [&] {
      if (rounds.tile() < count) next = glu_ckpt::uniform(scheduler.at(rounds.tile()));
    });
    write_rows<Element, kJointChunks, kJointSquares>(job, buffers, place, place.row + worker.row(), sums);
  }
  if (is_elected()) store_wait_all();
}

template <typename Element, bool kTurns>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_input_grad(const __grid_constant__ Sm90InputGrad job, int tiles_n) {
  extern __shared__ __align__(1024) std::byte memory[];
  if constexpr (kTurns) {
    auto& shared = *reinterpret_cast<TurnShared*>(memory);
    GLU_HOPPER_ONLY(run_block(
        shared, [&] { load_input_grad<kPingPongChunks>(job, shared, tiles_n); },
        [&] { multiply_in_turn<Element>(job, shared, tiles_n); }));
  } else {
    auto& shared = *reinterpret_cast<JointShared*>(memory);
    GLU_HOPPER_ONLY(run_block(
        shared, [&] { load_input_grad<kJointChunks>(job, shared, tiles_n); },
        [&] { multiply_jointly<Element>(job, shared, tiles_n); }));
  }
}

#undef GLU_HOPPER_ONLY

template <typename Element>
void launch_element(const Sm90InputGrad& job, int multiprocessors, GpuStream stream) {
  const bool in_turn = input_grad_takes_turns(
      {job.args.rows, job.args.experts, job.args.hidden, job.args.gated ? 2 * job.args.width : job.args.width},
      multiprocessors / kCluster);
  const int tiles_n = tiles_of(job.args.hidden, in_turn ? kPingPongCols : kJointCols);
  if (in_turn)
    launch<TurnShared>(sm90_input_grad<Element, true>, "sm90_input_grad", job, tiles_n, multiprocessors, stream);
  else
    launch<JointShared>(sm90_input_grad<Element, false>, "sm90_input_grad", job, tiles_n, multiprocessors, stream);
}

}  // namespace

void launch_sm90_input_grad(const Sm90InputGrad& job, int multiprocessors, GpuStream stream) {
  if (job.args.dtype == Dtype::BF16)
    launch_element<__nv_bfloat16>(job, multiprocessors, stream);
  else
    launch_element<__half>(job, multiprocessors, stream);
}

}  // namespace glu_ckpt
