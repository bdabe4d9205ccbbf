#include "plan/join_moves.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "exec/move_parts.hpp"
#include "plan/matrix_moves.hpp"

namespace glu_ckpt {
namespace {

/// (target, byte) -> (source, byte) of all moves; a byte written twice is a failure.
using Bytes = std::map<std::pair<std::size_t, i64>, std::pair<std::size_t, i64>>;

Bytes bytes_of(const std::vector<Move>& moves) {
  Bytes bytes;
  for (const Move& move : moves)
    for_each_run(move, [&](i64 src, i64 dst) {
      for (i64 b = 0; b < move.run_bytes; ++b)
        EXPECT_TRUE(bytes.emplace(std::pair(move.dst, dst + b), std::pair(move.src, src + b)).second) << dst + b;
    });
  return bytes;
}

/// Rows of gate or up in blocks of `block_rows`, each followed by as many of the other; `first` is the first one's
/// byte.
Matrix rows_of(i64 rows, i64 cols, i64 block_rows, i64 first) {
  Matrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.element_bytes = 2;
  matrix.place = {first, block_rows, 2 * block_rows * cols * 2, cols * 2, 2};
  return matrix;
}

/// Gate and up of one expert between two block sizes.
std::vector<Move> expert_moves(i64 rows, i64 cols, i64 from, i64 to) {
  std::vector<Move> moves;
  for (const i64 half : {0, 1})
    for (const Move& move :
         matrix_moves(rows_of(rows, cols, from, half * from * cols * 2), rows_of(rows, cols, to, half * to * cols * 2)))
      moves.push_back(move);
  return moves;
}

TEST(JoinMoves, MakesOneRunOfAnExpertThatKeepsItsOrder) {
  for (const i64 block : {1, 2, 4, 12}) {
    const auto joined = join_moves(expert_moves(12, 5, block, block));
    ASSERT_EQ(joined.size(), 1u) << block;
    EXPECT_EQ(joined[0].run_bytes, 2 * 12 * 5 * 2);
    EXPECT_EQ(joined[0].runs(), 1);
  }
}

TEST(JoinMoves, CopiesTheSameBytes) {
  for (const i64 from : {1, 2, 3, 4, 6, 12})
    for (const i64 to : {1, 2, 3, 4, 6, 12}) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      const auto moves = expert_moves(12, 5, from, to);
      const auto joined = join_moves(moves);
      EXPECT_LE(joined.size(), moves.size());
      EXPECT_EQ(bytes_of(joined), bytes_of(moves));
    }
}

TEST(JoinMoves, JoinsWhatWasCutAtRandom) {
  std::mt19937 random(1);
  const auto below = [&](i64 n) { return static_cast<i64>(random() % static_cast<u64>(n)); };
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<Move> pieces;
    for (i64 at = 0; at < 100;) {
      Move piece;
      piece.src = 3;
      piece.dst = 1;
      piece.src_offset = 40 + at;
      piece.dst_offset = at;
      piece.run_bytes = std::min<i64>(1 + below(30), 100 - at);
      piece.dims[0] = {4, 700, 300};
      at += piece.run_bytes;
      pieces.push_back(piece);
    }
    std::ranges::shuffle(pieces, random);
    const auto joined = join_moves(pieces);
    ASSERT_EQ(joined.size(), 1u);
    EXPECT_EQ(bytes_of(joined), bytes_of(pieces));
  }
}

TEST(JoinMoves, KeepsApartWhatOnlyTouchesOnOneSide) {
  Move first;
  first.run_bytes = 10;
  Move next = first;
  next.dst_offset = 10;
  next.src_offset = 11;
  EXPECT_EQ(join_moves(std::vector{first, next}).size(), 2u);
  next.src_offset = 10;
  EXPECT_EQ(join_moves(std::vector{first, next}).size(), 1u);
  next.src = 1;
  EXPECT_EQ(join_moves(std::vector{first, next}).size(), 2u);
  next.src = 0;
  next.dims[0] = {2, 100, 100};
  EXPECT_EQ(join_moves(std::vector{first, next}).size(), 2u);
}

}  // namespace
}  // namespace glu_ckpt
