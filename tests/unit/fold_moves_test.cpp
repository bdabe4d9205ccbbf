#include "plan/fold_moves.hpp"

#include <gtest/gtest.h>

#include "kernels/common/fast_division.hpp"
#include "kernels/copy/strided_copy.hpp"
#include "kernels/copy/transpose_copy.hpp"
#include "support/copy_cases.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

/// One launch for a tensor or for a batch of experts, not one for each.
TEST(FoldMoves, ExpertsShareABatch) {
  const GluSizes sizes{64, 64, 128, 32, 2};
  const auto batches = [](const CopyCase& item) {
    HostTensors tensors(item);
    return fold_moves(item.moves, tensors.srcs, tensors.dsts);
  };
  for (const bool interleave : {true, false}) {
    const auto whole = batches(interleave_case(sizes, interleave, false, false));
    ASSERT_EQ(whole.size(), 1U);
    EXPECT_EQ(whole[0].pairs.size(), 1U);
    EXPECT_EQ(whole[0].shape.num_dims, 3);
    EXPECT_EQ(whole[0].shape.run_bytes, 32 * 128 * 2);
    // Gate and up in turn are the innermost loop, whichever side they are apart on.
    EXPECT_EQ(whole[0].shape.dims[2].count, 2);
  }
  const auto indexed = batches(interleave_case(sizes, true, true, true));
  ASSERT_EQ(indexed.size(), 1U);
  EXPECT_LE(indexed[0].pairs.size(), 128U);
  const auto turned = batches(turn_case(sizes, true));
  ASSERT_EQ(turned.size(), 1U);
  EXPECT_EQ(turned[0].pairs.size(), 1U);
}

TEST(FoldMoves, RunsThatTouchBecomeOne) {
  Move move;
  move.dims[0] = {4, 100, 100};
  move.dims[1] = {5, 20, 20};
  move.run_bytes = 20;
  const std::vector<std::byte> src(400);
  std::vector<std::byte> dst(400);
  const std::byte* from = src.data();
  std::byte* to = dst.data();
  const auto batches = fold_moves(std::span(&move, 1), std::span(&from, 1), std::span(&to, 1));
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].shape.num_dims, 0);
  EXPECT_EQ(batches[0].shape.run_bytes, 400);
}

TEST(FoldMoves, NothingToMoveIsNoBatch) {
  Move move;
  EXPECT_TRUE(fold_moves(std::span(&move, 1), {}, {}).empty());
}

TEST(FoldMoves, WordsDivideEveryNumber) {
  alignas(16) std::byte memory[64];
  CopyBatch batch;
  batch.shape.run_bytes = 32;
  batch.pairs = {{memory, memory + 32}};
  EXPECT_EQ(copy_word_bytes(batch), 16);
  batch.pairs = {{memory, memory + 32}, {memory, memory + 8}};
  EXPECT_EQ(copy_word_bytes(batch), 8);
  batch.pairs = {{memory, memory + 32}};
  batch.shape.dims[0] = {2, 32, 34};
  batch.shape.num_dims = 1;
  EXPECT_EQ(copy_word_bytes(batch), 2);
  batch.shape.run_bytes = 1;
  EXPECT_EQ(copy_word_bytes(batch), 1);
}

TEST(FoldMoves, GptOssIsATransposeOfPairs) {
  const CopyCase item = turn_case({3, 96, 160, 96, 2}, true);
  HostTensors tensors(item);
  const auto batches = fold_moves(item.moves, tensors.srcs, tensors.dsts);
  ASSERT_EQ(batches.size(), 1U);
  const auto shape = find_transpose(batches[0].shape);
  ASSERT_TRUE(shape.has_value());
  EXPECT_EQ(shape->across, (TransposeAxis{2, 96, 96 * 160 * 2, 160 * 2}));
  EXPECT_EQ(shape->down, (TransposeAxis{160, 1, 2 * 96 * 2, 0}));
  EXPECT_EQ(shape->outer.runs(), 3);
  EXPECT_TRUE(transposes_in_vectors(*shape, {}));
}

/// More places or tiles than a launch can number go to strided_copy(), which cuts what is too large.
TEST(FoldMoves, TransposesFitOneLaunch) {
  const auto found = [](i64 across, i64 down, i64 planes) {
    CopyShape shape;
    shape.run_bytes = 1;
    shape.dims[0] = {planes, across * down, across * down};
    shape.dims[1] = {across, 1, down};
    shape.dims[2] = {down, across, 1};
    shape.num_dims = 3;
    return find_transpose(shape).has_value();
  };
  constexpr i64 kBillion = i64{1} << 30;
  EXPECT_TRUE(found(2 * kBillion - 1, 8, 2));
  EXPECT_FALSE(found(2 * kBillion, 8, 2));
  EXPECT_FALSE(found(8, 4 * kBillion + 8, 2));
  EXPECT_TRUE(found(8, 8, 2 * kBillion - 1));
  EXPECT_FALSE(found(8, 8, 2 * kBillion));
  EXPECT_FALSE(found(40, 40, kBillion));
}

TEST(FoldMoves, RowsAreNoTranspose) {
  const CopyCase item = interleave_case({2, 32, 64, 8, 2}, true, false, false);
  HostTensors tensors(item);
  for (const CopyBatch& batch : fold_moves(item.moves, tensors.srcs, tensors.dsts))
    EXPECT_FALSE(find_transpose(batch.shape).has_value());
}

TEST(FastDivision, IsDivision) {
  for (u32 divisor : {1U, 2U, 3U, 5U, 7U, 31U, 32U, 33U, 641U, 14'336U, 65'535U, 65'536U, 65'537U, 3'000'000'000U / 2,
                      (1U << 31) - 1, 1U << 31})
    for (u64 base : {u64{0}, u64{1}, u64{divisor}, u64{divisor} * 2, u64{divisor} * 1000, u64{1} << 31, u64{1} << 32})
      for (i64 by = -2; by <= 2; ++by) {
        const i64 dividend = static_cast<i64>(base) + by;
        if (dividend < 0 || dividend >= i64{1} << 32) continue;
        ASSERT_EQ(FastDivision(divisor).quotient(static_cast<u32>(dividend)), dividend / divisor)
            << dividend << " / " << divisor;
      }
}

}  // namespace
}  // namespace glu_ckpt
