#pragma once
/// The threads of a block of the backward's products of rows that do not multiply: one loads the tiles that the cluster
/// is given, step by step, and one gives them out.

#include "kernels/mlp/sm90_ping_pong.cuh"
#include "kernels/mlp/tile_queue.cuh"

namespace glu_ckpt::sm90 {

/// Loads the tiles that `shared.queue` gives. Of a loader, look_ahead(tile) fetches what begin(tile) will need;
/// begin(tile) returns the steps of a tile; load(from, to) loads some of them, in order, and is to do little else: if a
/// step took as long here as its products take, a wait for a tile's map would never be caught up on.
template <typename SharedType, typename Loader>
__device__ inline void load_given(SharedType& shared, Loader loader) {
  auto tile = shared.queue.take(0);
  for (int turn = 0; tile.is_there(); ++turn) {
    const int steps = loader.begin(tile);
    const int asking = max(0, steps - shared.queue.kLead);
    const int taking = max(asking, steps - 2);
    loader.load(0, asking);
    shared.queue.ask();
    loader.load(asking, taking);
    tile = shared.queue.take(turn + 1);
    if (tile.is_there()) loader.look_ahead(tile);
    loader.load(taking, steps);
  }
  loader.finish();
}

/// Gives out the tiles of a product with `tiles_n` tiles along its columns. `taken` counts them.
template <typename SharedType>
__device__ inline void give_row_tiles(const BackwardArgs& args, SharedType& shared, int tiles_n, int* taken) {
  if (cluster_rank() != 0) return;
  TileScheduler scheduler(args.tiles, args.experts, kBackwardTileRows, tiles_n);
  shared.queue.give_all(scheduler, taken, [](const LayerTile&) {});
}

/// Loads a tile's columns of an expert's weight, kDepthRows rows a step, of which each block of a cluster loads half
/// for both.
template <int kChunks>
class WeightColumns {
 public:
  WeightColumns() = default;
  /// The columns of tile `n`, from the first row on.
  __device__ WeightColumns(const TmaWeight* weight, int n)
      : rows_(weight), half_(static_cast<int>(cluster_rank())), col_(n * kChunks * kTileCols) {
    rows_.open();
    walk_ = rows_.walk<kDepthRows>(half_ * kHalfDepthRows);
  }

  /// Loads the rows of the next step to `to`. They may not be the first to leave L2: the heights of an expert read them
  /// at about the same time, not at the same.
  __device__ void load(std::byte* to, uint64_t* full) {
    rows_.load<kHalfDepthRows, kChunks, true>(to + half_ * kHalfChunkBytes, full, col_, walk_.place, kEvictNormal);
    walk_.next();
  }

 private:
  StoredRowsLoader rows_;
  int half_ = 0, col_ = 0;
  StoredRowsLoader::Walk walk_;
};

}  // namespace glu_ckpt::sm90
