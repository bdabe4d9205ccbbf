#include "core/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace glu_ckpt {
namespace {

/// 0, 1, ... below `count`.
auto counting(std::atomic<int>& given, int count) {
  return [&given, count](int) {
    const int number = given++;
    return number < count ? number : -1;
  };
}

TEST(ParallelFor, CallsEachOnce) {
  std::vector<std::atomic<int>> calls(1000);
  parallel_for(calls.size(), 8, [&](std::size_t i, int) { ++calls[i]; });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
  parallel_for(0, 8, [](std::size_t, int) { FAIL(); });
}

TEST(ParallelFor, ThrowsTheFirstFailure) {
  EXPECT_THROW(parallel_for(100, 8,
                            [](std::size_t i, int) {
                              if (i == 7) throw std::runtime_error("7");
                            }),
               std::runtime_error);
}

/// Whichever fails first by the clock.
TEST(ParallelFor, ThrowsTheLowestFailure) {
  std::atomic<bool> later_failed = false;
  try {
    parallel_for(100, 4, [&](std::size_t i, int) {
      if (i == 7) {
        while (!later_failed) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      if (i == 8) later_failed = true;
      if (i >= 7) throw std::runtime_error(std::to_string(i));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "7");
  }
}

TEST(ParallelUntil, SaysWhatComesNext) {
  constexpr int kCount = 200;
  std::atomic<int> given = 0;
  std::vector<std::atomic<int>> calls(kCount);
  std::vector<std::atomic<int>> said(kCount);
  std::atomic<int> unsaid = 0;
  parallel_until(
      4, counting(given, kCount),
      [&](std::size_t i, int) {
        ++calls[i];
        if (said[i] == 0) ++unsaid;
      },
      [&](std::size_t i) {
        EXPECT_EQ(calls[i], 0);
        ++said[i];
      });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
  for (const auto& count : said) EXPECT_LE(count, 1);
  // A thread's first task.
  EXPECT_LE(unsaid, 4);
}

/// A task that a thread has in hand when a later one fails is run all the same.
TEST(ParallelUntil, RunsWhatWasTakenBeforeTheFailure) {
  std::atomic<int> given = 0;
  std::atomic<int> failures = 0;
  std::mutex mutex;
  std::set<std::size_t> run;
  try {
    parallel_until(
        2, counting(given, 100),
        [&](std::size_t i, int) {
          {
            const std::lock_guard lock(mutex);
            run.insert(i);
          }
          // Until the other thread, which has a greater number in hand, has failed.
          if (i == 0)
            while (failures == 0) std::this_thread::yield();
          if (i >= 3) {
            ++failures;
            throw std::runtime_error(std::to_string(i));
          }
        },
        [](std::size_t) {});
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "3");
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(run.contains(i)) << i;
  }
}

}  // namespace
}  // namespace glu_ckpt
