/// The turns of two warpgroups of a block, in random orders of their warps: each multiplies the stages of its own tiles
/// and no others, and all come to their ends.

#include "kernels/mlp/stage_turns.cuh"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace glu_ckpt::sm90 {
namespace {

constexpr int kWarps = kWarpgroup / 32;

struct Shared {
  static constexpr int kStages = 4;
  /// The number of the step that is in each stage.
  int stages[kStages] = {};
  uint64_t full[kStages];
  uint64_t empty[kStages];
  Turns turns;
  /// The warps that have come to each step's products, which hold them together.
  std::vector<int> multiplying;

  explicit Shared(int steps) : multiplying(static_cast<std::size_t>(steps)) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 1);
    }
    turns.init();
  }
};

struct FakeWorker {
  int group, warp, lane;
  void release(Shared& shared, int stage) const {
    if (warp == 0) barrier_arrive(&shared.empty[stage]);
  }
};

/// Returns the warps that waited for ever with tiles of so many steps: the loading one is the first.
std::vector<std::size_t> stuck_warps(const std::vector<int>& steps, unsigned seed) {
  std::vector<int> first(steps.size() + 1);
  std::partial_sum(steps.begin(), steps.end(), first.begin() + 1);
  Shared shared(first.back());
  std::vector<std::function<void()>> warps;
  warps.emplace_back([&] {
    PipelineStage<Shared::kStages> pipeline;
    for (int step = 0; step < first.back(); ++step, pipeline.next()) {
      barrier_wait(&shared.empty[pipeline.stage], pipeline.parity ^ 1);
      barrier_expect(&shared.full[pipeline.stage], 1);
      shared.stages[pipeline.stage] = step;
      bytes_have_come(&shared.full[pipeline.stage], 1);
    }
  });
  for (int group = 0; group < kConsumers; ++group)
    for (int warp = 0; warp < kWarps; ++warp)
      warps.emplace_back([&, group, warp] {
        const FakeWorker worker{group, warp, 0};
        PingPong ping_pong(shared, worker);
        for (auto tile = static_cast<std::size_t>(group); tile < steps.size(); tile += kConsumers) {
          const int steps_before = tile > 0 ? steps[tile - 1] : 0;
          const auto multiply = [&](int stage, int step) {
            ASSERT_EQ(stage, first[tile] + step) << "tile " << tile << ", seed " << seed;
            int& together = shared.multiplying[static_cast<std::size_t>(stage)];
            ++together;
            fake_warp::something_happened();
            while (together < kWarps) fake_warp::let_others_go_on();
          };
          if (steps[tile] > 0)
            ping_pong.take_turn(
                steps_before, steps[tile], [] {}, multiply);
          else
            ping_pong.pass_turn(steps_before, [] {});
        }
      });
  return fake_warp::run_in_random_order(warps, seed);
}

TEST(StageTurns, TilesOfManyStepsAndOfNone) {
  const std::vector<std::size_t> none;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    std::vector<int> steps(random() % 14);
    for (int& count : steps) count = random() % 2 == 0 ? 0 : static_cast<int>(random() % 7);
    ASSERT_EQ(stuck_warps(steps, seed), none) << "seed " << seed;
  }
}

TEST(StageTurns, OneWarpWithoutTheOthersIsSeen) {
  std::vector<std::function<void()>> warps;
  uint64_t never = 0;
  barrier_init(&never, 1);
  warps.emplace_back([&] { barrier_wait(&never, 0); });
  warps.emplace_back([] {});
  EXPECT_EQ(fake_warp::run_in_random_order(warps, 1), std::vector<std::size_t>{0});
}

}  // namespace
}  // namespace glu_ckpt::sm90
