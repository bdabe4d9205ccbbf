#include "ranks/task_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <random>

namespace glu_ckpt {
namespace {

struct TaskCase {
  unsigned seed = 0;
  int ranks = 1;
  std::vector<i64> task_bytes;

  i64 total() const { return std::accumulate(task_bytes.begin(), task_bytes.end(), i64{0}); }
  i64 largest() const { return task_bytes.empty() ? 0 : *std::ranges::max_element(task_bytes); }
  i64 bytes(const TaskRange& range) const {
    return std::accumulate(task_bytes.begin() + range.first, task_bytes.begin() + range.last, i64{0});
  }
};

TaskCase make_case(unsigned seed) {
  std::mt19937 random(seed);
  TaskCase item{seed, 1 + static_cast<int>(random() % 40), {}};
  const auto count = random() % 3000;
  // Tasks of one size, of any size, and with stretches of what an earlier run has done.
  const auto kind = random() % 3;
  for (std::size_t i = 0; i < count; ++i) {
    const i64 bytes = kind == 0 ? i64{8} << 20 : static_cast<i64>(random() % (16U << 20));
    item.task_bytes.push_back(kind == 2 && random() % 100 < 70 ? 0 : bytes);
  }
  return item;
}

template <typename Check>
void for_cases(const Check& check) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    check(make_case(seed));
  }
}

TEST(DivideTasks, HasEachTaskInOneChunk) {
  for_cases([](const TaskCase& item) {
    i64 next = 0;
    for (const TaskRange& chunk : divide_tasks(item.task_bytes, item.ranks)) {
      EXPECT_EQ(chunk.first, next);
      EXPECT_GT(chunk.last, chunk.first);
      next = chunk.last;
    }
    EXPECT_EQ(next, static_cast<i64>(item.task_bytes.size()));
  });
}

TEST(DivideTasks, ShrinksToSingleTasks) {
  for_cases([](const TaskCase& item) {
    const auto chunks = divide_tasks(item.task_bytes, item.ranks);
    if (chunks.empty() || item.ranks == 1) return;
    i64 left = item.total();
    for (const TaskRange& chunk : chunks) {
      // A part of what each rank would have to do of the rest, up to the end of a task.
      EXPECT_LE(item.bytes(chunk), left / (4 * item.ranks) + item.largest());
      left -= item.bytes(chunk);
    }
    const TaskRange last = chunks.back();
    EXPECT_LE(std::count_if(item.task_bytes.begin() + last.first, item.task_bytes.begin() + last.last,
                            [](i64 bytes) { return bytes > 0; }),
              1);
  });
}

/// When each rank's last task ends, where chunk k goes to the rank that is free first. Rank r needs 1 / speed[r] for a
/// byte.
std::vector<double> finish_times(const TaskCase& item, const std::vector<double>& speed) {
  using Free = std::pair<double, std::size_t>;
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (std::size_t rank = 0; rank < speed.size(); ++rank) free.emplace(0.0, rank);
  std::vector<double> times(speed.size());
  for (const TaskRange& chunk : divide_tasks(item.task_bytes, item.ranks)) {
    const auto [time, rank] = free.top();
    free.pop();
    times[rank] = time + static_cast<double>(item.bytes(chunk)) / speed[rank];
    free.emplace(times[rank], rank);
  }
  return times;
}

/// Ranks of one speed and of speeds that differ by a factor of three end within a few tasks' time of each other.
TEST(DivideTasks, LetsRanksEndTogether) {
  for (const double slowest : {1.0, 1.0 / 3}) {
    for (const int ranks : {2, 5, 16}) {
      const TaskCase item{0, ranks, std::vector<i64>(4000, 1)};
      std::vector<double> speed(static_cast<std::size_t>(ranks), 1.0);
      speed.front() = slowest;
      const auto times = finish_times(item, speed);
      const auto [first, last] = std::ranges::minmax(times);
      EXPECT_LE(last - first, 2 / slowest) << ranks << " ranks, slowest " << slowest;
    }
  }
}

TEST(DivideTasks, TakesFewChunksOfManyTasks) {
  const std::vector<i64> tasks(1'000'000, 8 << 20);
  const auto chunks = divide_tasks(tasks, 16);
  EXPECT_LT(chunks.size(), 1000U);
  EXPECT_EQ(chunks.front().last, 1'000'000 / 64);
}

TEST(DivideTasks, IsOneChunkForOneRank) {
  EXPECT_EQ(divide_tasks(std::vector<i64>(100, 5), 1), (std::vector<TaskRange>{{0, 100}}));
  EXPECT_TRUE(divide_tasks({}, 1).empty());
  EXPECT_TRUE(divide_tasks({}, 3).empty());
}

TEST(DivideTasks, TakesTasksWithoutBytesTogether) {
  EXPECT_EQ(divide_tasks(std::vector<i64>(100, 0), 3), (std::vector<TaskRange>{{0, 100}}));
  EXPECT_EQ(divide_tasks(std::vector<i64>{0, 0, 4, 0, 4, 0, 0}, 2), (std::vector<TaskRange>{{0, 4}, {4, 7}}));
}

}  // namespace
}  // namespace glu_ckpt
