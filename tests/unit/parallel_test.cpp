#include "core/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
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

}  // namespace
}  // namespace glu_ckpt
