/// The gradient of the input, dx = dz W1: both warpgroups of a block make a tile of 128 x 256, 64 rows each. What they
/// write of a tile they round first, so that it takes a quarter of a thread's registers and those of the sums are free
/// for the next tile: between its steps, while the tensor cores multiply, the results leave square by square.
///
/// A tile of 128 x 192 for each warpgroup in turn, as the other products have it, reads 1.17 times as much from L2 for
/// a product, which is power. But nothing multiplies between two tiles here. FC1, whose activations take long, and FC2,
/// whose tiles are short, lose more by that than they gain.

#include "kernels/mlp/backward_tiles.cuh"

namespace glu_ckpt {
namespace {

using namespace sm90;

constexpr int kCols = kInputGradCols;
constexpr int kChunks = kCols / kTileCols;
/// A thread's sums of a tile, and the words of two elements that they become.
using Sums = float[kCols / 2];
using Words = uint32_t[kCols / 4];
constexpr int kSquares = 2;
/// Both warpgroups of both blocks give a stage back.
using Shared = QueuedStages<BlockStages<4, kABytes + kCols * kTileRowBytes, kSquares, kConsumers * kCluster>,
                            TileQueue<LayerTile, kCluster, kConsumers>>;

/// Loads a tile's steps: the products of da and W_gate, then those of du and W_up. Rows of dz are read again by each
/// tile along the columns, so L2 is to keep them.
class InputGradLoader {
 public:
  __device__ InputGradLoader(const Sm90InputGrad& job, Shared& shared) : job_(job), filler_(shared) {}

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
        std::byte* const stage = filler_.next(Shared::kStageBytes);
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
  StageFiller<Shared> filler_;
  LayerTile tile_;
  int row_ = 0, half_ = 0;
  WeightColumns<kChunks> columns_;
};

/// Takes the steps of tiles, one after the other, into a warpgroup's sums. kMultiplied are the columns to multiply.
template <typename Element>
class Steps {
 public:
  __device__ Steps(Shared& shared, const Worker& worker) : shared_(shared), worker_(worker) {}

  /// Begins a tile. The sums of other columns are 0: undefined, they would keep their registers from tile to tile.
  template <int kMultiplied>
  __device__ void take_first(Sums& sums) {
#pragma unroll
    for (int i = kMultiplied / 2; i < kCols / 2; ++i) sums[i] = 0;
    multiply<kMultiplied>(sums, false);
    go_on();
  }
  template <int kMultiplied>
  __device__ void take(Sums& sums) {
    multiply<kMultiplied>(sums, true);
    // The step before has ended once this one alone is under way.
    mma_wait<1>();
    worker_.release(shared_, last_);
    go_on();
  }
  /// The sums are complete on return.
  __device__ void finish() {
    mma_wait<0>();
    worker_.release(shared_, last_);
  }

 private:
  template <int kMultiplied>
  __device__ void multiply(Sums& sums, bool keep) {
    barrier_wait(&shared_.full[pipeline_.stage], pipeline_.parity);
    const std::byte* const stage = shared_.stages[pipeline_.stage];
    const uint64_t a = tile_descriptor(stage + worker_.group * kChunkBytes);
    const uint64_t b = transposed_descriptor(stage + kABytes, kChunkBytes);
    mma_fence();
#pragma unroll
    for (int k = 0; k < kDepthRows / 16; ++k)
      multiply_add<Element, kMultiplied, 0, 1>(sums, a + static_cast<uint64_t>(k) * 2,
                                               b + static_cast<uint64_t>(k) * kTransposedStep, keep || k > 0 ? 1 : 0);
    mma_commit();
  }
  __device__ void go_on() {
    last_ = pipeline_.stage;
    pipeline_.next();
  }

  Shared& shared_;
  const Worker& worker_;
  PipelineStage<Shared::kStages> pipeline_;
  int last_ = 0;
};

/// A warp's rows of a tile that are rounded: those of a thread, two elements in a word.
template <typename Element>
class Results {
 public:
  __device__ Results(const Sm90InputGrad& job, Shared& shared, const Worker& worker)
      : job_(job), buffers_(shared.out_of(worker.group, worker.warp)), row_(worker.row()) {}

  __device__ void round(const LayerTile& tile, const Sums& sums) {
    tile_ = tile;
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) words_[i] = pack<Element>(sums[2 * i], sums[2 * i + 1]);
  }
  /// Writes one of kChunks squares of the tile, if there was one and it has those columns.
  __device__ void write(int square) const {
    const int col = (tile_.n * kChunks + square) * kTileCols;
    if (!tile_.is_there() || col >= job_.args.hidden) return;
    const RowsOut dx{job_.args.dx, job_.args.hidden, true};
    write_square<Element, kTileCols, kSquares>(
        {dx, &job_.dx_map, job_.args.hidden}, buffers_ + square % kSquares * kSquareBytes, tile_.row + row_,
        tile_.row_end, col, [&](int i) { return words_[square * kTileCols / 4 + i]; });
  }

 private:
  const Sm90InputGrad& job_;
  std::byte* buffers_;
  int row_;
  LayerTile tile_;
  Words words_ = {};
};

/// All of it has to be inlined: where products are under way at a call, the compiler waits for each of them.
template <typename Element>
__device__ __forceinline__ void multiply_tiles(const Sm90InputGrad& job, Shared& shared) {
  const Worker worker;
  const int steps = tiles_of(job.args.width, kDepthRows) * (job.args.gated ? 2 : 1);
  // The warpgroups write one after the other: while one is busy with a square, the other has products under way.
  const int before_writing = worker.group == 1 ? min(steps, 1 + kChunks) : 1;
  Steps<Element> products(shared, worker);
  Results<Element> results(job, shared, worker);
  int turn = 0;
  // Makes a tile, of which kMultiplied columns are multiplied, and returns the one after it.
  const auto make = [&](const LayerTile& tile, auto multiplied) {
    constexpr int kMultiplied = decltype(multiplied)::value;
    Sums sums;
    products.template take_first<kMultiplied>(sums);
    int step = 1;
    for (; step < before_writing; ++step) products.template take<kMultiplied>(sums);
#pragma unroll
    for (int square = 0; square < kChunks; ++square) {
      results.write(square);
      if (step < steps) {
        products.template take<kMultiplied>(sums);
        ++step;
      }
    }
    for (; step < steps; ++step) products.template take<kMultiplied>(sums);
    // Once the sums are complete nothing is under way, so the next tile is looked for before.
    const LayerTile next = shared.queue.take_by_warp(++turn, worker.lane);
    products.finish();
    results.round(tile, sums);
    return next;
  };
  for (LayerTile tile = shared.queue.take_by_warp(turn, worker.lane); tile.is_there();) {
    // H = 2880 leaves 64 columns for its last tile.
    if (job.args.hidden - tile.n * kCols <= kCols / 2)
      tile = make(tile, std::integral_constant<int, kCols / 2>{});
    else
      tile = make(tile, std::integral_constant<int, kCols>{});
  }
#pragma unroll
  for (int square = 0; square < kChunks; ++square) results.write(square);
  if (is_elected()) store_wait_all();
}

template <typename Element>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    sm90_input_grad(const __grid_constant__ Sm90InputGrad job, int tiles_n) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  GLU_HOPPER_ONLY(run_block(
      shared, [&] { load_given(shared, InputGradLoader(job, shared)); },
      [&]() __attribute__((always_inline)) { multiply_tiles<Element>(job, shared); },
      [&] { give_row_tiles(job.args, shared, tiles_n, job.taken); }));
}

#undef GLU_HOPPER_ONLY

}  // namespace

void launch_sm90_input_grad(const Sm90InputGrad& job, int multiprocessors, GpuStream stream) {
  const auto kernel = job.args.dtype == Dtype::BF16 ? sm90_input_grad<__nv_bfloat16> : sm90_input_grad<__half>;
  launch<Shared>(kernel, "sm90_input_grad", job, tiles_of(job.args.hidden, kCols), multiprocessors, stream);
}

}  // namespace glu_ckpt
