#include "core/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace glu_ckpt {
namespace {

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

}  // namespace
}  // namespace glu_ckpt
