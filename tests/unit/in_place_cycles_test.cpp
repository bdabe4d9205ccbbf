#include "kernels/copy/in_place_cycles.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

/// Carries block numbers along the segments as the kernel does, all starts saved first.
std::vector<u32> follow(u32 half, bool interleave, u32 most_steps) {
  std::vector<u32> blocks(2 * half);
  std::iota(blocks.begin(), blocks.end(), 0U);
  const auto segments = cycle_segments(half, interleave, most_steps);
  std::map<i64, u32> saved;
  for (const CycleSegment& segment : segments)
    if (segment.slot >= 0) {
      EXPECT_TRUE(saved.emplace(segment.slot, blocks[segment.start]).second);
    }
  for (const CycleSegment& segment : segments) {
    EXPECT_LE(segment.steps, most_steps);
    u32 carried = segment.slot < 0 ? blocks[segment.start] : saved.at(segment.slot);
    u32 at = segment.start;
    for (u32 step = 0; step < segment.steps; ++step) {
      at = next_block(at, half, interleave);
      std::swap(carried, blocks[at]);
    }
  }
  return blocks;
}

/// Against the two maps of docs/architecture.md: I[p] = C[h*F + b*k + o], in units of k rows.
TEST(InPlaceCycles, EveryBlockEndsInItsPlace) {
  for (u32 half = 1; half < 130; ++half)
    for (const u32 most_steps : {1U, 2U, 5U, 64U, 1000U}) {
      const std::vector<u32> there = follow(half, true, most_steps);
      const std::vector<u32> back = follow(half, false, most_steps);
      for (u32 p = 0; p < 2 * half; ++p) {
        const u32 contiguous = p % 2 * half + p / 2;
        ASSERT_EQ(there[p], contiguous) << half << " " << most_steps;
        ASSERT_EQ(back[contiguous], p) << half << " " << most_steps;
      }
    }
}

TEST(InPlaceCycles, SlotsAreNumberedFromZero) {
  i64 slots = 0;
  for (const CycleSegment& segment : cycle_segments(2880, true, 64)) slots = std::max(slots, segment.slot + 1);
  EXPECT_GT(slots, 2 * 2880 / 64 - 10);
  for (const CycleSegment& segment : cycle_segments(2048, true, 64)) EXPECT_EQ(segment.slot, -1);
}

TEST(InPlaceCycles, ScratchIsBounded) {
  InPlaceGlu glu{128, 5760 * 5760, 5760, 5760, 1, true};
  const i64 whole = in_place_scratch_bytes(glu);
  EXPECT_LT(whole, glu.experts * glu.expert_step / 25);
  const i64 least = in_place_scratch_bytes(glu, 0);
  EXPECT_EQ(in_place_schedule(glu, 0).experts_at_once, 1);
  EXPECT_EQ(in_place_schedule(glu, whole).experts_at_once, 128);
  EXPECT_LE(in_place_scratch_bytes(glu, whole / 2), whole / 2);
  EXPECT_LT(least, whole / 64);
  // Short cycles need the table alone, for any number of experts.
  glu = {64, 4096 * 14'336, 4096, 14'336, 32, true};
  EXPECT_EQ(in_place_schedule(glu, 0).experts_at_once, 64);
  EXPECT_LT(in_place_scratch_bytes(glu), 4096);
}

TEST(InPlaceCycles, ScratchMustDo) {
  const InPlaceSchedule schedule = in_place_schedule({2, 2000 * 16, 2000, 16, 1, true}, 0);
  alignas(16) std::byte place[32];
  const i64 bytes = schedule.scratch_bytes();
  EXPECT_NO_THROW(check_in_place_scratch(schedule, place, bytes));
  const auto refused = [&](const std::byte* scratch, i64 given, const std::string& word) {
    support::expect_error(
        ErrorCode::Usage, [&] { check_in_place_scratch(schedule, scratch, given); }, word);
  };
  refused(place, bytes - 1, std::to_string(bytes));
  refused(place + 8, bytes, "multiple of 16");
  refused(nullptr, bytes, "multiple of 16");
  // Nothing moves, so nothing is needed.
  EXPECT_NO_THROW(check_in_place_scratch(in_place_schedule({1, 0, 64, 16, 32, true}, 0), nullptr, 0));
}

TEST(InPlaceCycles, BlocksMustDivideTheHalves) {
  const InPlaceGlu glu{1, 0, 96, 8, 32, true};
  support::expect_error(
      ErrorCode::Usage, [&] { in_place_schedule(glu, 0); }, "96 rows");
}

}  // namespace
}  // namespace glu_ckpt
