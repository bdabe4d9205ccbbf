#pragma once
/// Gives a kernel's tiles out one by one, so that blocks which begin late, wait, or meet short tiles take fewer, and
/// tiles that follow one another, which read the same weights, are under way together however long a kernel runs. One
/// thread of a block, or of a cluster of two, takes the next number from a counter in device memory and looks its tile
/// up; the loading threads and the warpgroups find it in their shared memory when they get to it. Where memory is busy
/// a look into device memory takes microseconds, which pass while a tile before is under way.

#include "kernels/mlp/stage_turns.cuh"

namespace glu_ckpt::sm90 {

/// The tiles of kBlocks blocks, a cluster's, by their turn: 0, 1, 2, and so on. The loading thread of each block reads
/// them all; so do both of its warpgroups where kGroups is 2, or each reads every second one where it is 1. The first
/// block's loading thread asks for each, as late as it can: a tile that waits here while another cluster has nothing to
/// do is time lost. Tile is LayerTile.
template <typename Tile, int kBlocks, int kGroups>
class TileQueue {
 public:
  /// The steps before the end of a tile at which the next one has to be asked for.
  static constexpr int kLead = 8;

  __device__ void init() {
    for (int slot = 0; slot < kSlots; ++slot) {
      barrier_init(&given_[slot], 1);
      barrier_init(&free_[slot], kReaders);
    }
    barrier_init(&asked_, 1);
  }

  /// Gives the tiles that `scheduler` finds: the cluster's first by its own number, those after it by `taken`. Behind
  /// them it gives one without rows, or one for either warpgroup where these take turns, and no more: a block that has
  /// read the last is gone. Before it gives a tile, but for the first, it calls `wait` with it. One thread of the first
  /// block calls it.
  template <typename Scheduler, typename Wait>
  __device__ void give_all(Scheduler& scheduler, int* taken, const Wait& wait) {
    const auto count = scheduler.count();
    int number = static_cast<int>(blockIdx.x) / kBlocks;
    int turn = 0;
    while (number < count) {
      const Tile tile = scheduler.at(number);
      if (turn > 0) wait(tile);
      give(turn++, tile);
      barrier_wait(&asked_, static_cast<uint32_t>(turn - 1) % 2);
      number = static_cast<int>(gridDim.x) / kBlocks + atomicAdd(taken, 1);
    }
    constexpr int kLasts = kConsumers / kGroups;
    for (int last = 0; last < kLasts; ++last) give(turn + last, Tile{});
    // Readers of both blocks give a slot back at this block, which must not be gone before. Slots that the last ones
    // took have been given back.
    for (int given = turn + kLasts - kSlots; given < turn; ++given)
      if (given >= 0) barrier_wait(&free_[given % kSlots], static_cast<uint32_t>(given / kSlots % 2));
  }

  /// Asks for the tile of the next turn. The loading threads call it once for each tile that is there.
  __device__ void ask() {
    if (kBlocks == 1 || cluster_rank() == 0) barrier_arrive(&asked_);
  }

  /// Waits for the tile of a turn, and gives its slot back if it is there. The loading thread of each block calls it.
  __device__ Tile take(int turn) {
    wait_for(turn);
    return read(turn);
  }

  /// The same for all lanes of a warp that multiplies. One of them reads, and gives the slot back when all have waited:
  /// one that lagged by two turns of the slot would miss its phase.
  __device__ Tile take_by_warp(int turn, int lane) {
    wait_for(turn);
    __syncwarp();
    Tile tile{};
    if (lane == 0) tile = read(turn);
    return uniform(tile);
  }

 private:
  static constexpr int kSlots = 2;
  static constexpr int kReaders = (1 + kGroups * kWarpgroup / 32) * kBlocks;

  __device__ void wait_for(int turn) { barrier_wait(&given_[turn % kSlots], static_cast<uint32_t>(turn / kSlots % 2)); }

  __device__ Tile read(int turn) {
    const int slot = turn % kSlots;
    const volatile int* const words = tiles_[slot];
    const Tile tile{words[0], words[1], words[2], words[3]};
    if (!tile.is_there()) return tile;
    if constexpr (kBlocks == 1)
      barrier_arrive(&free_[slot]);
    else
      barrier_arrive_at(&free_[slot], 0);
    return tile;
  }

  __device__ void give(int turn, const Tile& tile) {
    const int slot = turn % kSlots;
    barrier_wait(&free_[slot], static_cast<uint32_t>(turn / kSlots + 1) % 2);
    const int words[4] = {tile.expert, static_cast<int>(tile.row), static_cast<int>(tile.row_end), tile.n};
    if constexpr (kBlocks == 1) {
      volatile int* const to = tiles_[slot];
      for (int i = 0; i < 4; ++i) to[i] = words[i];
      barrier_arrive(&given_[slot]);
    } else {
#pragma unroll
      for (uint32_t rank = 0; rank < kBlocks; ++rank) store_to_block(tiles_[slot], words, &given_[slot], rank);
    }
  }

  alignas(16) int tiles_[kSlots][4];
  uint64_t given_[kSlots];
  uint64_t free_[kSlots];
  uint64_t asked_;
};

/// The shared memory of a block: stages, and the tiles that it is given.
template <typename Stages, typename Queue>
struct QueuedStages : Stages {
  Queue queue;

  __device__ void init() {
    Stages::init();
    queue.init();
  }
};

}  // namespace glu_ckpt::sm90
