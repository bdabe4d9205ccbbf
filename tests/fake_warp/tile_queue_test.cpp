/// How the blocks of a cluster, or one block, share out tiles, in random orders of their warps and of what arrives from
/// one block at the other: each tile is multiplied once, and no block is gone while something is on its way to it.

#include "kernels/mlp/tile_queue.cuh"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <utility>

namespace glu_ckpt::sm90 {
namespace {

constexpr int kWarps = kWarpgroup / 32;
constexpr int kBytes = 3;

/// A tile as the queue takes it apart: of row_end - row - 1 steps.
struct Tile {
  /// Its number.
  int expert = 0;
  int row = 0;
  int row_end = 0;
  /// The steps of the tile that the cluster was given before.
  int n = 0;
  bool is_there() const { return row_end > row; }
  int steps() const { return row_end - row - 1; }
};

/// The number of a tile and of a step.
struct Step {
  int tile, step;
};

/// The stages of one of kBlocks blocks. kGroups warpgroups of each multiply the same ones.
template <int kBlocks, int kGroups>
struct Stages {
  static constexpr int kStages = 4;
  /// The blocks that a stage is given back to.
  static constexpr std::uint32_t kReleases = kBlocks;
  /// What this block and both halves of B brought.
  std::byte stages[kStages][3 * sizeof(Step)] = {};
  uint64_t full[kStages];
  uint64_t empty[kStages];
  Turns turns;

  void init() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], kBlocks * kGroups);
    }
    turns.init();
  }
};

template <int kBlocks, int kGroups>
struct Shared : QueuedStages<Stages<kBlocks, kGroups>, TileQueue<Tile, kBlocks, kGroups>> {
  Shared() { this->init(); }
};

/// Tiles of as many steps as `steps` says.
struct Scheduler {
  std::vector<int> steps;
  int steps_before = 0;
  int count() const { return static_cast<int>(steps.size()); }
  Tile at(int number) {
    const int its = steps[static_cast<std::size_t>(number)];
    return {number, 0, its + 1, std::exchange(steps_before, its)};
  }
};

struct FakeWorker {
  int group, warp, lane;
  template <typename SharedType>
  void release(SharedType& shared, int stage) const {
    for (std::uint32_t rank = 0; warp == 0 && rank < SharedType::kReleases; ++rank)
      barrier_arrive_at(&shared.empty[stage], rank);
  }
};

/// A cluster of kBlocks blocks that takes every tile, or leaves some to others. kGroups warpgroups of a block multiply
/// a tile together, or each every second one in turn.
template <int kBlocks, int kGroups>
class Cluster {
 public:
  using SharedType = Shared<kBlocks, kGroups>;

  Cluster(const std::vector<int>& steps, unsigned seed) : random_(seed), multiplied_(steps.size()), scheduler_{steps} {}

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
    for (int rank = 0; rank < kBlocks; ++rank) {
      fake_cluster.blocks[rank] = reinterpret_cast<std::byte*>(&blocks_[rank]);
      if (rank == 0)
        add(rank, [this] {
          blocks_[0].queue.give_all(scheduler_, &taken_, [](const Tile&) { fake_warp::let_others_go_on(); });
        });
      add(rank, [this, rank] { load(rank); });
      for (int group = 0; group < kConsumers; ++group)
        for (int warp = 0; warp < kWarps; ++warp)
          add(rank, [=, this] {
            const FakeWorker worker{group, warp, 0};
            kGroups == 1 ? multiply_in_turn(rank, worker) : multiply_together(rank, worker);
          });
      if (rank == 0) fake_cluster.warps_of_first = warps.size();
    }
    after_first_ = 1 + static_cast<int>(random_() % 2);
    first_ = static_cast<int>(random_() % 2) % after_first_;
    gridDim.x = static_cast<unsigned>(after_first_ * kBlocks);
    blockIdx.x = static_cast<unsigned>(first_ * kBlocks);
    return fake_warp::run_in_random_order(warps, seed);
  }

  /// How many warpgroups have multiplied a tile.
  int times(int tile) const { return multiplied_[static_cast<std::size_t>(tile)]; }
  /// A cluster's first tile is its own number, which is 0 or 1 here; those after all clusters' are counted out.
  bool is_its(int tile) const { return tile == first_ || tile >= after_first_; }

 private:
  void load(int rank) {
    SharedType& shared = blocks_[rank];
    StageFiller filler(shared);
    // In the order of load_layer(); load_given() loads nothing first.
    Tile tile = shared.queue.take(0);
    for (int turn = 0; tile.is_there(); ++turn) {
      const auto load_steps = [&](int from, int to) {
        for (int step = from; step < to; ++step) {
          std::byte* const stage = filler.next(kBytes);
          bring(stage, 0, filler.full(), rank, {tile.expert, step});
          // A block without another brings both halves itself.
          for (int half = rank; half < kCluster; half += kBlocks)
            for (int other = 0; other < kBlocks; ++other)
              bring(stage, 1 + half, filler.full(), other, {tile.expert, step});
        }
      };
      const int steps = tile.steps();
      const int loaded = std::min(turn == 0 ? SharedType::kStages : turn % 2, steps);
      load_steps(0, loaded);
      const int asking = std::max(loaded, steps - shared.queue.kLead);
      load_steps(loaded, asking);
      shared.queue.ask();
      const int taking = std::max(asking, steps - 2);
      load_steps(asking, taking);
      const Tile next = shared.queue.take(turn + 1);
      load_steps(taking, steps);
      tile = next;
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

  void multiply_stage(const std::byte* stage, const Tile& tile, int step, int rank, const FakeWorker& worker) {
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
  }

  /// As the kernel of few rows does, and the gradient of the input in joint tiles: both warpgroups read each stage, and
  /// give it back a step later.
  void multiply_together(int rank, const FakeWorker& worker) {
    SharedType& shared = blocks_[rank];
    PipelineStage<SharedType::kStages> pipeline;
    for (int turn = 0;; ++turn) {
      const Tile tile = shared.queue.take_by_warp(turn, worker.lane);
      if (!tile.is_there()) break;
      int last = 0;
      for (int step = 0; step < tile.steps(); ++step, pipeline.next()) {
        barrier_wait(&shared.full[pipeline.stage], pipeline.parity);
        multiply_stage(shared.stages[pipeline.stage], tile, step, rank, worker);
        mma_wait<1>();
        if (step > 0) worker.release(shared, last);
        last = pipeline.stage;
      }
      if (tile.steps() > 0) worker.release(shared, last);
      if (worker.warp == 0) ++multiplied_[static_cast<std::size_t>(tile.expert)];
    }
  }

  void multiply_in_turn(int rank, const FakeWorker& worker) {
    SharedType& shared = blocks_[rank];
    PingPong ping_pong(shared, worker);
    for (int turn = worker.group;; turn += kConsumers) {
      const Tile tile = shared.queue.take_by_warp(turn, worker.lane);
      if (!tile.is_there()) break;
      if (tile.steps() > 0)
        ping_pong.take_turn(
            tile.n, tile.steps(), [] {},
            [&](const std::byte* stage, int step) { multiply_stage(stage, tile, step, rank, worker); });
      else
        ping_pong.pass_turn(tile.n, [] {});
      if (worker.warp == 0) ++multiplied_[static_cast<std::size_t>(tile.expert)];
    }
  }

  std::mt19937 random_;
  std::vector<int> multiplied_;
  Scheduler scheduler_;
  SharedType blocks_[kBlocks];
  /// The warps that have come to a warpgroup's products, which hold them together.
  int together_[kBlocks][kConsumers] = {};
  int taken_ = 0;
  int first_ = 0, after_first_ = 0;
};

template <int kBlocks, int kGroups>
void expect_each_tile_once() {
  const std::vector<std::size_t> none;
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    // Each may have as many steps as all, or some of them, or none: how long a block lives must not depend on steps.
    const int most = 1 + static_cast<int>(random() % 11);
    std::vector<int> steps(random() % 12, most);
    if (random() % 2 == 0)
      for (int& its : steps) its = static_cast<int>(random() % 3) * static_cast<int>(random() % 6);
    Cluster<kBlocks, kGroups> cluster(steps, seed);
    ASSERT_EQ(cluster.run(seed), none) << "seed " << seed;
    ASSERT_FALSE(fake_cluster.reached_a_block_that_was_gone) << "seed " << seed;
    for (int tile = 0; tile < std::ssize(steps); ++tile)
      EXPECT_EQ(cluster.times(tile), cluster.is_its(tile) ? kBlocks * kGroups : 0)
          << "tile " << tile << ", seed " << seed;
  }
}

TEST(TileQueue, TwoBlocksWhoseWarpgroupsTakeTurns) { expect_each_tile_once<2, 1>(); }
TEST(TileQueue, TwoBlocksWhoseWarpgroupsMultiplyTogether) { expect_each_tile_once<2, 2>(); }
TEST(TileQueue, OneBlockWhoseWarpgroupsMultiplyTogether) { expect_each_tile_once<1, 2>(); }

}  // namespace
}  // namespace glu_ckpt::sm90
