#pragma once
/// Gives a kernel's tiles out one by one, so that clusters which begin late, wait, or meet short tiles take fewer. One
/// thread of a cluster takes the next number from a counter in device memory and looks its tile up; the loading threads
/// and the warpgroups of both blocks find it in their shared memory when they get to it.

#include "kernels/mlp/stage_turns.cuh"

namespace glu_ckpt::sm90 {

/// The tiles of a cluster, by their turn: 0, 1, 2, and so on. The loading thread of each block reads them all, each of
/// its two warpgroups every second one. The first block's loading thread asks for each, as late as it can: a tile that
/// waits here while another cluster has nothing to do is time lost. Tile is LayerTile.
template <typename Tile>
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
  /// them it gives one without rows to either warpgroup, and no more: a block that has read the last is gone. One
  /// thread of the first block calls it.
  template <typename Scheduler>
  __device__ void give_all(Scheduler& scheduler, int* taken) {
    const auto count = scheduler.count();
    int number = static_cast<int>(blockIdx.x) / kCluster;
    int turn = 0;
    while (number < count) {
      give(turn++, scheduler.at(number));
      barrier_wait(&asked_, static_cast<uint32_t>(turn - 1) % 2);
      number = static_cast<int>(gridDim.x) / kCluster + atomicAdd(taken, 1);
    }
    for (int after = 0; after < kConsumers; ++after) give(turn + after, Tile{});
  }

  /// Asks for the tile of the next turn. The loading threads call it once for each tile that is there.
  __device__ void ask() {
    if (cluster_rank() == 0) barrier_arrive(&asked_);
  }

  /// Waits for the tile of a turn. Those who read it call read() then; one that is not there is not read.
  __device__ Tile tile(int turn) {
    const int slot = turn % kSlots;
    barrier_wait(&given_[slot], static_cast<uint32_t>(turn / kSlots % 2));
    const volatile int* const words = tiles_[slot];
    return {words[0], words[1], words[2], words[3]};
  }

  /// The loading thread and one lane of each warp of the warpgroup, in each block, call it.
  __device__ void read(int turn) { barrier_arrive_at(&free_[turn % kSlots], 0); }

 private:
  static constexpr int kSlots = 2;
  static constexpr int kReaders = (1 + kWarpgroup / 32) * kCluster;

  __device__ void give(int turn, const Tile& tile) {
    const int slot = turn % kSlots;
    barrier_wait(&free_[slot], static_cast<uint32_t>(turn / kSlots + 1) % 2);
    const int words[4] = {tile.expert, static_cast<int>(tile.row), static_cast<int>(tile.row_end), tile.n};
#pragma unroll
    for (uint32_t rank = 0; rank < kCluster; ++rank) store_to_block(tiles_[slot], words, &given_[slot], rank);
  }

  alignas(16) int tiles_[kSlots][4];
  uint64_t given_[kSlots];
  uint64_t free_[kSlots];
  uint64_t asked_;
};

}  // namespace glu_ckpt::sm90
