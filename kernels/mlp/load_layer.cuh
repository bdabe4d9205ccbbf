#pragma once
/// The threads of a block that do not multiply: one loads a layer's tiles, stage by stage, and one gives them out. Both
/// kernels of the forward share them.

#include "kernels/mlp/sm90_block.cuh"
#include "kernels/mlp/tile_queue.cuh"

namespace glu_ckpt::sm90 {

/// Loads the tiles that `shared.queue` gives, of `tile_rows` rows. `load_rows(stage, full, tile, step)` loads a step's
/// rows of A. Weights(layer, tile) are a tile's: load(stage, full, step) loads those of a step, and open() comes before
/// the first.
template <typename Weights, typename SharedType, typename LoadRows>
__device__ inline void load_layer(const Sm90Layer& layer, SharedType& shared, int tile_rows,
                                  const LoadRows& load_rows) {
  // Weights, probabilities and the places of tiles are there when the layer before begins, which is when a layer that
  // follows one may begin.
  if (!layer.follows_layer) wait_for_launch_before();
  let_next_launch_begin();
  StageFiller<SharedType> filler(shared);
  const int steps = tiles_of(layer.k, kTileCols);
  LayerTile tile = shared.queue.take(0);
  Weights weights(layer, tile);
  for (int turn = 0; tile.is_there(); ++turn) {
    weights.open();
    const auto load = [&](int from, int to) {
      for (int step = from; step < to; ++step) {
        std::byte* const stage = filler.next(SharedType::kStageBytes);
        weights.load(stage, filler.full(), step);
        load_rows(stage, filler.full(), tile, step);
      }
    };
    int loaded = min(1, steps);
    if (layer.follows_layer && turn == 0) {
      // Weights need not wait for the layer before, rows do.
      loaded = min(SharedType::kStages, steps);
      for (int step = 0; step < loaded; ++step) weights.load(filler.next(SharedType::kStageBytes), filler.full(), step);
      wait_until_written(layer, tile.expert, tile_rows);
      for (int step = 0; step < loaded; ++step) load_rows(shared.stages[step], &shared.full[step], tile, step);
    } else {
      load(0, loaded);
    }
    const int asking = max(loaded, steps - shared.queue.kLead);
    load(loaded, asking);
    shared.queue.ask();
    // The next tile's number and its map are fetched while the last stages of this one are loaded.
    const int taking = max(asking, steps - 2);
    load(asking, taking);
    const LayerTile next = shared.queue.take(turn + 1);
    const Weights next_weights(layer, next);
    load(taking, steps);
    tile = next;
    weights = next_weights;
  }
  filler.finish();
}

/// Gives out a layer's tiles of `tile_rows` rows, `tiles_n` along N, when their rows of A are there; load_layer() waits
/// for those of the first. One thread of a block, or of the first block of a cluster, calls it. The second block learns
/// of the rows by the tile, whose barrier orders memory for a block alone: its TMA finds them in L2, where they were
/// before they were counted. An order for the cluster would be a fence in the time that a short tile leaves.
template <typename SharedType>
__device__ inline void schedule_layer(const Sm90Layer& layer, SharedType& shared, int tile_rows, int tiles_n) {
  if (!layer.follows_layer) wait_for_launch_before();
  TileScheduler scheduler(layer.tiles, layer.experts, tile_rows, tiles_n);
  int expert = -1;
  shared.queue.give_all(scheduler, layer.taken, [&](const LayerTile& tile) {
    if (layer.follows_layer && tile.expert != expert) wait_until_written(layer, tile.expert, tile_rows);
    expert = tile.expert;
  });
}

}  // namespace glu_ckpt::sm90
