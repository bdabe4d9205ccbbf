#pragma once
/// Gives a kernel's tiles out one by one, so that clusters which begin late, wait, or meet short tiles take fewer. One
/// thread of a cluster takes the next number from a counter in device memory and looks its tile up; the loading threads
/// and the warpgroups of both blocks find it in their shared memory when they get to it.

#include "kernels/mlp/sm90_backward_block.cuh"

namespace glu_ckpt::sm90 {

/// The tiles of a cluster, by their turn: 0, 1, 2, and so on. A block's two warpgroups multiply every second one.
class TileQueue {
 public:
  __device__ void init() {
    for (int slot = 0; slot < kSlots; ++slot) {
      barrier_init(&given_[slot], 1);
      barrier_init(&free_[slot], kReaders);
    }
  }

  /// Gives the tiles that `scheduler` finds: the cluster's first by its own number, those after it by `taken`, and for
  /// the next turn of either warpgroup one without rows. One thread of the first block calls it.
  __device__ void give_all(TileScheduler& scheduler, i32* taken) {
    const i64 count = scheduler.count();
    int number = static_cast<int>(blockIdx.x) / kCluster;
    for (int turn = 0, after_last = 0; after_last < kConsumers; ++turn) {
      const bool is_there = number < count;
      const LayerTile tile = is_there ? scheduler.at(number) : LayerTile{};
      if (is_there)
        number = static_cast<int>(gridDim.x) / kCluster + atomicAdd(taken, 1);
      else
        ++after_last;
      give(turn, tile);
    }
  }

  /// Waits for the tile of a turn. Those who read it call read() then; one without rows is not read.
  __device__ LayerTile tile(int turn) {
    const int slot = turn % kSlots;
    barrier_wait(&given_[slot], static_cast<uint32_t>(turn / kSlots % 2));
    const volatile int* const words = tiles_[slot];
    return {words[0], words[1], words[2], words[3]};
  }

  /// The loading thread and one lane of each warp of the warpgroup, in each block, call it.
  __device__ void read(int turn) { barrier_arrive_at(&free_[turn % kSlots], 0); }

 private:
  /// With one tile under way and the next at hand, the one after that is looked up when the first begins.
  static constexpr int kSlots = 2;
  static constexpr int kReaders = (1 + kWarpgroup / 32) * kCluster;

  __device__ void give(int turn, const LayerTile& tile) {
    const int slot = turn % kSlots;
    barrier_wait(&free_[slot], static_cast<uint32_t>(turn / kSlots + 1) % 2);
    const int words[4] = {tile.expert, static_cast<int>(tile.row), static_cast<int>(tile.row_end), tile.n};
#pragma unroll
    for (uint32_t rank = 0; rank < kCluster; ++rank) store_to_block(tiles_[slot], words, &given_[slot], rank);
  }

  alignas(16) int tiles_[kSlots][4];
  uint64_t given_[kSlots];
  uint64_t free_[kSlots];
};

}  // namespace glu_ckpt::sm90
