/// The schedule's oracle against examples worked by hand, and the arithmetic that kernels share with it.

#include "kernels/grouped_gemm/expert_tiles.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMaxI64 = std::numeric_limits<i64>::max();

struct Schedule {
  SplitStatus status;
  std::vector<i64> first_row;
  std::vector<i32> first_tile;
};

Schedule schedule_of(const std::vector<i64>& splits, i64 rows, i32 tile_rows) {
  Schedule out{{}, std::vector<i64>(splits.size() + 1, -1), std::vector<i32>(splits.size() + 1, -1)};
  std::vector<u64> written(splits.size(), 7);
  std::vector<i32> taken(ExpertTiles::kTakers, 7);
  make_expert_tiles_ref(splits, rows, tile_rows,
                        {&out.status, out.first_row.data(), written.data(), out.first_tile.data(), taken.data()});
  EXPECT_EQ(written, std::vector<u64>(splits.size()));
  EXPECT_EQ(taken, std::vector<i32>(ExpertTiles::kTakers));
  return out;
}

std::string complaint_of(const std::vector<i64>& splits, i64 rows) {
  try {
    check_split_status(split_status(splits, rows));
  } catch (const Error& error) {
    return std::string(slug(error.code())) + ": " + error.what();
  }
  return "none";
}

TEST(ExpertTilesOracle, WorkedByHand) {
  const Schedule s = schedule_of({3, 0, 128, 129, 0}, 300, 128);
  EXPECT_EQ(s.status, SplitStatus{});
  EXPECT_EQ(s.first_row, (std::vector<i64>{0, 3, 3, 131, 260, 260}));
  EXPECT_EQ(s.first_tile, (std::vector<i32>{0, 1, 1, 2, 4, 4}));
}

TEST(ExpertTilesOracle, AWrongSplitLeavesNoTile) {
  const Schedule s = schedule_of({3, 4, -1, 2}, 300, 16);
  EXPECT_EQ(s.status, (SplitStatus{SplitFault::Negative, 2, -1, 7, 300}));
  EXPECT_EQ(s.first_row, std::vector<i64>(5, 0));
  EXPECT_EQ(s.first_tile, std::vector<i32>(5, 0));
}

TEST(ExpertTilesOracle, TheFirstWrongSplitIsNamed) {
  EXPECT_EQ(complaint_of({3, 4, 5}, 12), "none");
  EXPECT_EQ(complaint_of({3, 4, 5}, 11), "usage: splits up to number 2 take 7 + 5 rows; there are 11");
  EXPECT_EQ(complaint_of({3, -4, 5}, 11), "usage: split 1 is -4");
  EXPECT_EQ(complaint_of({12, -1}, 11), "usage: splits up to number 0 take 0 + 12 rows; there are 11");
  EXPECT_EQ(complaint_of({1, kMaxI64}, 11),
            "usage: splits up to number 1 take 1 + 9223372036854775807 rows; there are 11");
  EXPECT_EQ(complaint_of({}, 0), "none");
}

/// Every tile of every split, walked without a search.
TEST(ExpertTiles, TheSearchFindsTheExpertOfEveryTile) {
  std::mt19937 random(1);
  for (const std::size_t experts : {1, 2, 3, 8, 130}) {
    std::vector<i64> splits(experts);
    i64 rows = 0;
    for (i64& split : splits) rows += split = random() % 3 == 0 ? 0 : static_cast<i64>(random() % 300);
    const Schedule s = schedule_of(splits, rows, 128);
    i32 tile = 0;
    for (std::size_t e = 0; e < experts; ++e)
      for (i64 row = 0; row < splits[e]; row += 128)
        EXPECT_EQ(expert_of_tile(s.first_tile.data(), static_cast<i32>(experts), tile++), static_cast<i32>(e));
    EXPECT_EQ(tile, s.first_tile.back());
    EXPECT_LE(tile, max_expert_tiles(rows, static_cast<i64>(experts), 128));
  }
}

TEST(ExpertTiles, TheBoundHoldsAndIsReached) {
  EXPECT_EQ(max_expert_tiles(0, 8, 128), 0);
  EXPECT_EQ(max_expert_tiles(5, 8, 128), 5);
  EXPECT_EQ(max_expert_tiles(129, 2, 128), 3);
  // 7 experts with one row and one with the rest.
  EXPECT_EQ(schedule_of({1, 1, 1, 1, 1, 1, 1, 249}, 256, 128).first_tile.back(), 9);
  EXPECT_EQ(max_expert_tiles(256, 8, 128), 10);
}

TEST(ExpertTiles, MemoryIsLaidOutWithoutOverlap) {
  for (const i64 experts : {1, 2, 3, 130}) {
    std::vector<i64> memory(static_cast<std::size_t>(expert_tiles_bytes(experts) / 8 + 1));
    auto* const begin = reinterpret_cast<std::byte*>(memory.data());
    const ExpertTiles tiles = expert_tiles_at(begin, experts);
    EXPECT_EQ(static_cast<void*>(tiles.status + 1), static_cast<void*>(tiles.first_row));
    EXPECT_EQ(static_cast<void*>(tiles.first_row + experts + 1), static_cast<void*>(tiles.written));
    EXPECT_EQ(static_cast<void*>(tiles.written + experts), static_cast<void*>(tiles.first_tile));
    EXPECT_EQ(static_cast<void*>(tiles.first_tile + experts + 1), static_cast<void*>(tiles.taken));
    EXPECT_EQ(reinterpret_cast<std::byte*>(tiles.taken + ExpertTiles::kTakers) - begin, expert_tiles_bytes(experts));
  }
}

}  // namespace
}  // namespace glu_ckpt
