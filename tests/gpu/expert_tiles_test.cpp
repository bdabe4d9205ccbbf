/// make_expert_tiles on the device against its oracle: every byte, right splits and wrong ones.

#include "kernels/grouped_gemm/expert_tiles.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "gpu/guarded_array.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxI64 = std::numeric_limits<i64>::max();

void expect_as_oracle(const std::vector<i64>& splits, i64 rows, i32 tile_rows) {
  SCOPED_TRACE(std::to_string(splits.size()) + " splits of " + std::to_string(rows) + " rows");
  const i64 experts = std::ssize(splits);
  std::vector<std::byte> expected(static_cast<std::size_t>(expert_tiles_bytes(experts)));
  make_expert_tiles_ref(splits, rows, tile_rows, expert_tiles_at(expected.data(), experts));
  const CudaStream stream;
  const GuardedArray on_device(splits, 8);
  const GuardedArray memory(expert_tiles_bytes(experts), 8);
  const ExpertTiles tiles = expert_tiles_at(memory.data(), experts);
  make_expert_tiles(reinterpret_cast<const i64*>(on_device.data()), experts, rows, tile_rows, tiles, stream.get());
  EXPECT_EQ(slug_of([&] { check_split_status(tiles.status, stream.get()); }),
            slug_of([&] { check_split_status(split_status(splits, rows)); }));
  EXPECT_TRUE(memory.download() == expected);
  EXPECT_TRUE(memory.guards_intact());
}

std::vector<i64> random_splits(std::size_t count, std::mt19937& random) {
  std::vector<i64> splits(count);
  for (i64& split : splits) split = random() % 4 == 0 ? 0 : static_cast<i64>(random() % 700);
  return splits;
}

i64 sum_of(const std::vector<i64>& splits) {
  i64 sum = 0;
  for (const i64 split : splits) sum += split;
  return sum;
}

TEST(ExpertTilesOnDevice, CountsAroundWarpsAndBlocks) {
  std::mt19937 random(1);
  for (const std::size_t count : {1, 2, 31, 32, 33, 130, 1023, 1024, 1025, 2050, 5000})
    for (const i32 tile_rows : {1, 32, 64, 128}) {
      const auto splits = random_splits(count, random);
      expect_as_oracle(splits, sum_of(splits), tile_rows);
      expect_as_oracle(splits, sum_of(splits) + 1000, tile_rows);
    }
  expect_as_oracle({0}, 0, 128);
  expect_as_oracle(std::vector<i64>(40, 0), 7, 128);
}

TEST(ExpertTilesOnDevice, AWrongSplitAnywhereIsNamed) {
  std::mt19937 random(2);
  for (const std::size_t at : {0, 1, 31, 32, 40, 1023, 1024, 1500, 2047, 2048, 2499})
    for (const i64 wrong : {i64{-1}, -kMaxI64 - 1, i64{100000000}, kMaxI64}) {
      auto splits = random_splits(2500, random);
      const i64 rows = sum_of(splits);
      splits[at] = wrong;
      expect_as_oracle(splits, rows, 128);
      // A later one that brings the sum back, or is wrong itself, does not hide it.
      if (at + 1 < splits.size()) splits[at + 1] = wrong == -kMaxI64 - 1 ? kMaxI64 : -wrong;
      expect_as_oracle(splits, rows, 128);
    }
  expect_as_oracle({3, 4, 5}, 11, 128);
  expect_as_oracle({kMaxI64, kMaxI64, 2}, 100, 128);
}

}  // namespace
}  // namespace glu_ckpt
