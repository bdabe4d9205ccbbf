/// The gradient of the input, dx = dz W1, by one of two kernels: layer_tiles.hpp says which. In one the two warpgroups
/// of a block take turns with tiles of 128 x 192 of their own, and results leave while the other multiplies. In the
/// other they share a tile of 128 x 256, which reads less for each product, but nothing multiplies while its results
/// leave. Both add the same products in the same order: their results have the same bits.

#include "kernels/mlp/backward_tiles.cuh"
#include "kernels/mlp/write_square.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

static_assert(kPingPongCols == kInputGradTurnCols);
constexpr int kJointCols = kInputGradJointCols;
using TurnShared = QueuedStages<PingPongStages<5, 1>, TileQueue<LayerTile, kCluster, 1>>;
constexpr int kJointChunks = kJointCols / kTileCols;
constexpr int kJointSquares = 2;
/// Both warpgroups of both blocks give a stage back.
using JointShared =
    QueuedStages<BlockStages<4, kABytes + kJointCols * kTileRowBytes, kJointSquares, kConsumers * kCluster>,
                 TileQueue<LayerTile, kCluster, kConsumers>>;

/// Loads tiles of kChunks times kTileCols columns: the products of da and W_gate, then those of du and W_up. Rows of dz
/// are read again by each tile along the columns, so L2 is to keep them.
template <int kChunks, typename SharedType>
class InputGradLoader {
 public:
  __device__ InputGradLoader(const Sm90InputGrad& job, SharedType& shared) : job_(job), filler_(shared) {}

  __device__ void look_ahead(const LayerTile& tile) const { tensor_map_to_l2(&weight(tile, first_half())->map); }
  __device__ int begin(const LayerTile& tile) {
    tile_ = tile;
    row_ = static_cast<int>(tile.row) + static_cast<int>(cluster_rank()) * kBlockRows;
    begin_half(first_half());
    return half_steps() * (2 - half_);
  }
  __device__ void load(int from, int to) {
    while (from < to) {
      const int before = half_ > first_half() ? half_steps() : 0;
      const int end = min(to, before + half_steps());
      for (; from < end; ++from) {
        std::byte* const stage = filler_.next(SharedType::kStageBytes);
        load_tile_2d(stage, &job_.dz_maps[half_], filler_.full(), (from - before) * kDepthRows, row_, kEvictLast);
        columns_.load(stage + kABytes, filler_.full());
      }
      if (from < to) begin_half(1);
    }
  }
  __device__ void finish() { filler_.finish(); }

 private:
  __device__ int first_half() const { return job_.args.gated ? 0 : 1; }
  __device__ int half_steps() const { return tiles_of(job_.args.width, kDepthRows); }
  __device__ const TmaWeight* weight(const LayerTile& tile, int half) const {
    return job_.weights + 2 * tile.expert + half;
  }
  __device__ void begin_half(int half) {
    half_ = half;
    columns_ = WeightColumns<kChunks>(weight(tile_, half), tile_.n);
  }

  const Sm90InputGrad& job_;
  StageFiller<SharedType> filler_;
  LayerTile tile_;
  int row_ = 0, half_ = 0;
  WeightColumns<kChunks> columns_;
};

/// Writes a warp's 16 rows of a tile, from `row` on, in squares that take turns in kBuffers.
template <typename Element, int kChunks, int kBuffers>
__device__ inline void write_rows(const Sm90InputGrad& job, std::byte* buffers, const LayerTile& place, i64 row,
                                  const float (&sums)[kChunks * kTileCols / 2]) {
  const RowsOut dx{job.args.dx, job.args.hidden, true};
#pragma unroll
  for (int square = 0; square < kChunks; ++square) {
    const int col = (place.n * kChunks + square) * kTileCols;
    if (col >= job.args.hidden) break;
    const float* const first = sums + square * (kTileCols / 2);
    write_square<Element, kTileCols, kBuffers>({dx, &job.dx_map, job.args.hidden},
                                               buffers + square % kBuffers * kSquareBytes, row, place.row_end, col,
                                               [&](int i) { return pack<Element>(first[2 * i], first[2 * i + 1]); });
  }
}

template <typename Element>
__device__ void multiply_in_turn(const Sm90InputGrad& job, TurnShared& shared) {
  const BackwardArgs& args = job.args;
  const Worker worker;
  const int steps = tiles_of(args.width, kDepthRows) * (args.gated ? 2 : 1);
  std::byte* const buffer = shared.out_of(worker.group, worker.warp);
  PingPong ping_pong(shared, worker);
  for (int turn = worker.group;; turn += kConsumers) {
    const LayerTile place = shared.queue.take_by_warp(turn, worker.lane);
    if (!place.is_there()) break;
    PingPongSums sums;
    with_cols(sums, args.hidden - place.n * kPingPongCols, [&](auto cols) {
      const auto multiply = [&](const std::byte* stage, int step) {
        multiply_stage<Element, 0, 1, decltype(cols)::value>(sums, stage, step > 0);
      };
      ping_pong.take_turn(
          turn > 0 ? steps : 0, steps, [] {}, multiply);
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

/// Takes `steps` stages into the sums, and gives each back.
template <typename Element>
__device__ inline void multiply_steps(float (&sums)[kJointCols / 2], JointShared& shared,
                                      PipelineStage<JointShared::kStages>& pipeline, const Worker& worker, int steps) {
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
  }
  mma_wait<0>();
  if (steps > 0) worker.release(shared, last);
}

template <typename Element>
__device__ void multiply_jointly(const Sm90InputGrad& job, JointShared& shared) {
  const BackwardArgs& args = job.args;
  const Worker worker;
  const int steps = tiles_of(args.width, kDepthRows) * (args.gated ? 2 : 1);
  std::byte* const buffers = shared.out_of(worker.group, worker.warp);
  PipelineStage<JointShared::kStages> pipeline;
  for (int turn = 0;; ++turn) {
    const LayerTile place = shared.queue.take_by_warp(turn, worker.lane);
    if (!place.is_there()) break;
    float sums[kJointCols / 2];
    multiply_steps<Element>(sums, shared, pipeline, worker, steps);
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
        shared, [&] { load_given(shared, InputGradLoader<kPingPongChunks, TurnShared>(job, shared)); },
        [&] { multiply_in_turn<Element>(job, shared); },
        [&] { give_row_tiles(job.args, shared, tiles_n, job.taken); }));
  } else {
    auto& shared = *reinterpret_cast<JointShared*>(memory);
    GLU_HOPPER_ONLY(run_block(
        shared, [&] { load_given(shared, InputGradLoader<kJointChunks, JointShared>(job, shared)); },
        [&] { multiply_jointly<Element>(job, shared); },
        [&] { give_row_tiles(job.args, shared, tiles_n, job.taken); }));
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
