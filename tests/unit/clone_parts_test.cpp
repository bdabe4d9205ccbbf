#include "plan/clone_parts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "exec/move_parts.hpp"
#include "plan/join_moves.hpp"
#include "plan/matrix_moves.hpp"

namespace glu_ckpt {
namespace {

/// The source of one byte of the output tensor.
struct Origin {
  std::size_t src = 0;
  i64 offset = -1;
  bool operator==(const Origin&) const = default;
};

struct Case {
  std::vector<Move> moves;
  std::vector<i64> src_at;
  i64 dst_at = 0;
  i64 bytes = 0;
  CloneLimits limits;
};

std::vector<Origin> origins_of(const Case& item) {
  std::vector<Origin> origins(static_cast<std::size_t>(item.bytes));
  for (const Move& move : item.moves)
    for_each_run(move, [&](i64 src, i64 dst) {
      for (i64 b = 0; b < move.run_bytes; ++b) origins[static_cast<std::size_t>(dst + b)] = {move.src, src + b};
    });
  return origins;
}

/// Every run of the joined moves, one after the other.
std::vector<CloneRun> clones_by_runs(const Case& item) {
  std::vector<CloneRun> clones;
  for (const Move& move : join_moves(item.moves))
    for_each_run(move, [&](i64 src, i64 dst) {
      const i64 at = item.src_at[move.src];
      if (at < 0 || (at + src - item.dst_at - dst) % item.limits.block != 0) return;
      const ByteRange blocks = whole_blocks(item.dst_at + dst, move.run_bytes, item.limits.block);
      const i64 first = blocks.begin - item.dst_at;
      const bool even = blocks.bytes() == move.run_bytes;
      const i64 least = even ? item.limits.min_even_bytes : item.limits.min_bytes;
      if (blocks.bytes() >= item.limits.block && blocks.bytes() >= least)
        clones.push_back({move.src, src + first - dst, first, blocks.bytes()});
    });
  std::ranges::sort(clones, {}, &CloneRun::dst_offset);
  return clones;
}

void expect_tiles(const CloneParts& parts, i64 begin, i64 end) {
  std::vector<ByteRange> all = parts.written;
  for (const CloneRun& run : parts.cloned) all.push_back({run.dst_offset, run.dst_offset + run.bytes});
  std::ranges::sort(all, {}, &ByteRange::begin);
  for (const ByteRange& range : all) {
    EXPECT_EQ(range.begin, begin);
    EXPECT_GT(range.bytes(), 0);
    begin = range.end;
  }
  EXPECT_EQ(begin, end);
}

void expect_clones(const Case& item, const CloneParts& parts, const std::vector<Origin>& origins) {
  for (const CloneRun& run : parts.cloned) {
    EXPECT_EQ((item.dst_at + run.dst_offset) % item.limits.block, 0);
    EXPECT_EQ((item.src_at[run.src] + run.src_offset) % item.limits.block, 0);
    EXPECT_EQ(run.bytes % item.limits.block, 0);
    for (i64 b = 0; b < run.bytes; ++b) {
      const auto& origin = origins[static_cast<std::size_t>(run.dst_offset + b)];
      ASSERT_EQ(origin, (Origin{run.src, run.src_offset + b})) << run.dst_offset + b;
    }
  }
}

i64 cloned_bytes(const CloneParts& parts) {
  i64 bytes = 0;
  for (const CloneRun& run : parts.cloned) bytes += run.bytes;
  return bytes;
}

void expect_splits(const Case& item, std::mt19937& random) {
  const auto origins = origins_of(item);
  const CloneMap map(item.moves, item.src_at, item.dst_at, item.limits);
  const CloneParts whole = map.parts(0, item.bytes);
  expect_tiles(whole, 0, item.bytes);
  expect_clones(item, whole, origins);
  EXPECT_EQ(whole.cloned, clones_by_runs(item));
  // Cut at blocks of the file, the parts are the same; cut elsewhere, a block is lost at each cut.
  i64 at_blocks = 0, anywhere = 0, cuts = 0;
  for (i64 begin = 0; begin < item.bytes;) {
    const i64 wanted = begin + 1 + static_cast<i64>(random() % 200);
    const i64 end = std::min(item.bytes, whole_blocks(item.dst_at + wanted, 0, item.limits.block).begin - item.dst_at);
    const CloneParts parts = map.parts(begin, end);
    expect_tiles(parts, begin, end);
    expect_clones(item, parts, origins);
    at_blocks += cloned_bytes(parts);
    begin = end;
  }
  for (i64 begin = 0; begin < item.bytes; ++cuts) {
    const i64 end = std::min(item.bytes, begin + 1 + static_cast<i64>(random() % 200));
    const CloneParts parts = map.parts(begin, end);
    expect_tiles(parts, begin, end);
    expect_clones(item, parts, origins);
    anywhere += cloned_bytes(parts);
    begin = end;
  }
  EXPECT_EQ(at_blocks, cloned_bytes(whole));
  EXPECT_GE(anywhere, cloned_bytes(whole) - cuts * item.limits.block);
}

Matrix half_of(std::size_t tensor, i64 first, i64 rows, i64 cols, i64 block_rows) {
  Matrix matrix;
  matrix.tensor = tensor;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.element_bytes = 2;
  matrix.place = {first, block_rows, 2 * block_rows * cols * 2, cols * 2, 2};
  return matrix;
}

/// Experts of gate and up, each a tensor of its own, grouped into one tensor in another order of rows.
Case random_case(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<i64> of) { return of.begin()[random() % of.size()]; };
  Case item;
  item.limits = {pick({1, 4, 16, 32}), pick({0, 16, 50, 200}), pick({0, 16, 50, 200})};
  item.dst_at = pick({0, 7, 8, 16, 48, 100});
  const i64 rows = 12, cols = pick({3, 4, 8, 16}), from = pick({1, 2, 3, 4, 6, 12}), to = pick({from, 1, 2, 4, 12});
  const i64 expert_bytes = 2 * rows * cols * 2;
  for (const std::size_t expert : {0u, 1u, 2u, 3u}) {
    item.src_at.push_back(pick({-1, 0, 8, 13, 32, 64, 1000, 4096 + 48}));
    const i64 start = static_cast<i64>(expert) * expert_bytes;
    for (const i64 half : {0, 1})
      for (const Move& move : matrix_moves(half_of(expert, half * from * cols * 2, rows, cols, from),
                                           half_of(0, start + half * to * cols * 2, rows, cols, to)))
        item.moves.push_back(move);
  }
  item.bytes = 4 * expert_bytes;
  return item;
}

TEST(WholeBlocks, RoundInwards) {
  EXPECT_EQ(whole_blocks(0, 8192, 4096), (ByteRange{0, 8192}));
  EXPECT_EQ(whole_blocks(1, 8192, 4096), (ByteRange{4096, 8192}));
  EXPECT_EQ(whole_blocks(4095, 8192, 4096), (ByteRange{4096, 8192}));
  EXPECT_EQ(whole_blocks(1, 4096, 4096).bytes(), 0);
  EXPECT_EQ(whole_blocks(1, 10, 4096).bytes(), 0);
}

TEST(CloneParts, AreWhatTheBytesSay) {
  std::mt19937 random(7);
  int with_clones = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    SCOPED_TRACE(turn);
    const Case item = random_case(random);
    with_clones +=
        CloneMap(item.moves, item.src_at, item.dst_at, item.limits).parts(0, item.bytes).cloned.empty() ? 0 : 1;
    expect_splits(item, random);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(with_clones, 1000);
}

/// Steps that change the phase from run to run: only every other run fits.
TEST(CloneParts, TakesTheRunsOfALoopThatFit) {
  Case item;
  Move move;
  move.run_bytes = 64;
  move.dims[0] = {6, 72, 64};
  item.moves = {move};
  item.src_at = {0};
  item.bytes = 6 * 64;
  item.limits = {16, 16, 16};
  std::mt19937 random(1);
  expect_splits(item, random);
  EXPECT_EQ(CloneMap(item.moves, item.src_at, 0, item.limits).parts(0, item.bytes).cloned.size(), 3u);
}

TEST(CloneParts, TakesShorterRunsWhereNothingIsWrittenBetweenThem) {
  Case item;
  item.moves.resize(1);
  item.moves[0].run_bytes = 64;
  item.bytes = 64;
  item.limits = {16, 65, 64};
  item.src_at = {16};
  const auto cloned = [&] {
    return CloneMap(item.moves, item.src_at, item.src_at[0], item.limits).parts(0, 64).cloned;
  };
  EXPECT_EQ(cloned().size(), 1u);
  item.src_at = {17};
  EXPECT_TRUE(cloned().empty());
  item.limits.min_bytes = 48;
  EXPECT_EQ(cloned(), (std::vector<CloneRun>{{0, 15, 15, 48}}));
}

TEST(CloneParts, WithoutAPlaceInAFileAllIsWritten) {
  Case item;
  item.moves.resize(1);
  item.moves[0].run_bytes = 64;
  item.bytes = 64;
  item.limits = {16, 16, 16};
  const std::vector<i64> nowhere = {-1}, here = {32};
  for (const auto& [src_at, dst_at] : {std::pair(nowhere, i64{0}), {here, -1}, {here, 8}}) {
    const CloneMap map(item.moves, src_at, dst_at, item.limits);
    EXPECT_TRUE(map.empty());
    EXPECT_EQ(map.parts(5, 60).written, (std::vector<ByteRange>{{5, 60}}));
  }
  EXPECT_FALSE(CloneMap(item.moves, here, 0, item.limits).empty());
  EXPECT_TRUE(CloneMap({}, {}, 0, item.limits).parts(0, 0).written.empty());
}

/// One element in each run, 2^60 of them: a map that listed runs would never end.
TEST(CloneParts, NeverWalksRunsThatAreTooShort) {
  Move move;
  move.run_bytes = 2;
  move.dims[0] = {i64{1} << 30, 2, i64{1} << 31};
  move.dims[1] = {i64{1} << 30, i64{1} << 31, 2};
  const i64 bytes = i64{1} << 61;
  const CloneMap map(std::vector{move}, std::vector<i64>{0}, 0, {});
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(map.parts(0, bytes).written, (std::vector<ByteRange>{{0, bytes}}));
}

/// A range in the middle of a loop of 2^40 runs costs what its own runs cost.
TEST(CloneParts, WalksOnlyTheRunsOfTheRange) {
  Move move;
  move.run_bytes = 4096;
  move.dims[0] = {i64{1} << 40, 8192, 8192};
  const CloneMap map(std::vector{move}, std::vector<i64>{4096}, 4096, {4096, 4096, 4096});
  const i64 middle = i64{1} << 52;
  const CloneParts parts = map.parts(middle, middle + 3 * 8192);
  ASSERT_EQ(parts.cloned.size(), 3u);
  EXPECT_EQ(parts.cloned[1], (CloneRun{0, middle + 8192, middle + 8192, 4096}));
  EXPECT_EQ(parts.written.size(), 3u);
}

}  // namespace
}  // namespace glu_ckpt
