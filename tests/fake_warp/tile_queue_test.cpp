/// How the two blocks of a cluster share out tiles, in random orders of their warps and of what arrives from one block
/// at the other: each tile is multiplied once, and no block is gone while something is on its way to it.

#include "kernels/mlp/tile_queue.cuh"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

namespace glu_ckpt::sm90 {
namespace {

constexpr int kWarps = kWarpgroup / 32;
constexpr int kBytes = 3;

struct Tile {
  int expert = 0;
  int row = 0;
  int row_end = 0;
  int n = 0;
  bool is_there() const { return row_end > row; }
};

/// The number of a tile and of a step.
struct Step {
  int tile, step;
};

struct Shared {
  static constexpr int kStages = 4;
  /// What this block and both halves of B brought.
  std::byte stages[kStages][3 * sizeof(Step)] = {};
  uint64_t full[kStages];
  uint64_t empty[kStages];
  Turns turns;
  TileQueue<Tile, kCluster, 1> queue;

  Shared() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kCluster);
    }
    turns.init();
    queue.init();
  }
};

struct Scheduler {
  int tiles;
  int count() const { return tiles; }
  static Tile at(int number) { return {number, 0, 1, 0}; }
};

struct FakeWorker {
  int group, warp, lane;
  void release(Shared& shared, int stage) const {
    for (std::uint32_t rank = 0; warp == 0 && rank < kCluster; ++rank) barrier_arrive_at(&shared.empty[stage], rank);
  }
};

/// A cluster that takes every tile, or leaves some to others, each of `steps` steps.
class Cluster {
 public:
  Cluster(int tiles, int steps, unsigned seed) : tiles_(tiles), steps_(steps), random_(seed), multiplied_(tiles) {}

  /// Returns the warps that waited for ever.
  std::vector<std::size_t> run(unsigned seed) {
    std::vector<std::function<void()>> warps;
    const auto add = [&](int rank, std::function<void()> body) {
      ++fake_cluster.warps_left[rank];
      warps.emplace_back([rank, body = std::move(body)] {
        body();
        --fake_cluster.warps_left[rank];
      });
    };
    fake_cluster = {};
    for (int rank = 0; rank < kCluster; ++rank) {
      fake_cluster.blocks[rank] = reinterpret_cast<std::byte*>(&blocks_[rank]);
      if (rank == 0) add(rank, [this] { blocks_[0].queue.give_all(scheduler_, &taken_); });
      add(rank, [this, rank] { load(rank); });
      for (int group = 0; group < kConsumers; ++group)
        for (int warp = 0; warp < kWarps; ++warp) add(rank, [=, this] { multiply(rank, {group, warp, 0}); });
      if (rank == 0) fake_cluster.warps_of_first = warps.size();
    }
    after_first_ = 1 + static_cast<int>(random_() % 2);
    first_ = static_cast<int>(random_() % 2) % after_first_;
    gridDim.x = static_cast<unsigned>(after_first_ * kCluster);
    blockIdx.x = static_cast<unsigned>(first_ * kCluster);
    return fake_warp::run_in_random_order(warps, seed);
  }

  /// How often a warpgroup of either block has multiplied a tile.
  int times(int tile) const { return multiplied_[static_cast<std::size_t>(tile)]; }
  /// A cluster's first tile is its own number, which is 0 or 1 here; those after all clusters' are counted out.
  bool is_its(int tile) const { return tile == first_ || tile >= after_first_; }

 private:
  void load(int rank) {
    Shared& shared = blocks_[rank];
    StageFiller filler(shared);
    for (int turn = 0;; ++turn) {
      const Tile tile = shared.queue.tile(turn);
      if (!tile.is_there()) break;
      shared.queue.read(turn);
      for (int step = 0; step < steps_; ++step) {
        if (step == std::max(0, steps_ - shared.queue.kLead)) shared.queue.ask();
        std::byte* const stage = filler.next(kBytes);
        bring(stage, 0, filler.full(), rank, {tile.expert, step});
        for (int other = 0; other < kCluster; ++other)
          bring(stage, 1 + rank, filler.full(), other, {tile.expert, step});
      }
    }
    filler.finish();
  }

  static void bring(std::byte* stage, int part, uint64_t* full, int rank, Step what) {
    std::byte* const to = in_block(stage, static_cast<std::uint32_t>(rank)) + part * static_cast<int>(sizeof(Step));
    uint64_t* const its_full = in_block(full, static_cast<std::uint32_t>(rank));
    later_in_block(static_cast<std::uint32_t>(rank), [=] {
      std::memcpy(to, &what, sizeof what);
      bytes_have_come(its_full, 1);
    });
  }

  void multiply(int rank, const FakeWorker& worker) {
    Shared& shared = blocks_[rank];
    PingPong ping_pong(shared, worker, steps_);
    for (int turn = worker.group;; turn += kConsumers) {
      const Tile tile = shared.queue.tile(turn);
      if (!tile.is_there()) break;
      shared.queue.read(turn);
      ping_pong.take_turn(steps_, steps_, [&](const std::byte* stage, int step) {
        Step parts[3];
        std::memcpy(parts, stage, sizeof parts);
        for (const Step& part : parts) {
          ASSERT_EQ(part.tile, tile.expert);
          ASSERT_EQ(part.step, step);
        }
        int& together = together_[rank][worker.group];
        const int all = (together / kWarps + 1) * kWarps;
        ++together;
        fake_warp::something_happened();
        while (together < all) fake_warp::let_others_go_on();
      });
      if (worker.warp == 0) ++multiplied_[static_cast<std::size_t>(tile.expert)];
    }
  }

  int tiles_, steps_;
  std::mt19937 random_;
  std::vector<int> multiplied_;
  Scheduler scheduler_{tiles_};
  Shared blocks_[kCluster];
  /// The warps that have come to a warpgroup's products, which hold them together.
  int together_[kCluster][kConsumers] = {};
  int taken_ = 0;
  int first_ = 0, after_first_ = 0;
};

TEST(TileQueue, EachTileOnceWhateverTheOrder) {
  const std::vector<std::size_t> none;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int tiles = static_cast<int>(random() % 12);
    Cluster cluster(tiles, 1 + static_cast<int>(random() % 11), seed);
    ASSERT_EQ(cluster.run(seed), none) << "seed " << seed;
    ASSERT_FALSE(fake_cluster.reached_a_block_that_was_gone) << "seed " << seed;
    for (int tile = 0; tile < tiles; ++tile)
      EXPECT_EQ(cluster.times(tile), cluster.is_its(tile) ? kCluster : 0) << "tile " << tile << ", seed " << seed;
  }
}

}  // namespace
}  // namespace glu_ckpt::sm90
