#include "exec/read_pieces.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/checked_math.hpp"
#include "exec/move_parts.hpp"

namespace glu_ckpt {
namespace {

/// gpt-oss's [H, 2F] of one expert, gate and up in turn, to [2F, H]: gate or up.
Move half_of(i64 width, i64 hidden, bool up) {
  Move move;
  move.src_offset = up ? 2 : 0;
  move.dst_offset = up ? width * hidden * 2 : 0;
  move.dims[0] = {width, 4, 2 * hidden};
  move.dims[1] = {hidden, 4 * width, 2};
  move.run_bytes = 2;
  return move;
}

TEST(ReadPieces, GateAndUpInTurnAreOneWindow) {
  const std::vector<Move> moves{half_of(12, 20, false), half_of(12, 20, true)};
  const auto pieces = make_pieces(moves, 1 << 20, 1);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].begin, 0);
  EXPECT_EQ(pieces[0].wanted, 12 * 20 * 4);
  EXPECT_EQ(pieces[0].moves.size(), 2U);
}

TEST(ReadPieces, WindowsOfTwoTensorsStayTwo) {
  std::vector<Move> moves{half_of(12, 20, false), half_of(12, 20, true)};
  moves[1].src = 1;
  EXPECT_EQ(make_pieces(moves, 1 << 20, 1).size(), 2U);
}

/// Whatever the limit: every byte that is wanted lies in its piece, and every byte of the target is written once.
TEST(ReadPieces, HoldWhatTheirMovesRead) {
  std::mt19937 random(3);
  const auto number = [&](i64 least, i64 most) { return std::uniform_int_distribution<i64>(least, most)(random); };
  for (int round = 0; round < 300; ++round) {
    const i64 width = number(1, 40), hidden = number(1, 40), limit = number(4, 8000),
              alignment = i64{1} << number(0, 8);
    const std::vector<Move> moves{half_of(width, hidden, false), half_of(width, hidden, true)};
    std::vector<int> written(static_cast<std::size_t>(4 * width * hidden));
    for (const ReadPiece& piece : make_pieces(moves, limit, alignment)) {
      const bool run = piece.moves.size() == 1 && piece.moves[0].runs() == 1;
      EXPECT_TRUE(run || round_up(piece.wanted, alignment) <= limit);
      for (const Move& move : piece.moves) {
        EXPECT_GE(move.src_offset, piece.begin);
        EXPECT_LE(move.src_offset + source_window(move), piece.begin + piece.wanted);
        for_each_run(move, [&](i64, i64 dst) {
          for (i64 b = 0; b < move.run_bytes; ++b) ++written[static_cast<std::size_t>(dst + b)];
        });
      }
    }
    EXPECT_TRUE(std::ranges::all_of(written, [](int times) { return times == 1; }));
  }
}

TEST(MoveParts, StretchesEndWhereNoMoveCrosses) {
  std::vector<Move> moves;
  for (const i64 expert : {2, 0, 1})
    for (const i64 half : {1, 0}) {
      Move move;
      move.dst_offset = expert * 400 + half * 2;
      move.dims[0] = {100, 2, 4};
      move.run_bytes = 2;
      moves.push_back(move);
    }
  EXPECT_EQ(span_ends(moves), (std::vector<i64>{400, 800, 1200}));
  EXPECT_TRUE(span_ends({}).empty());
}

}  // namespace
}  // namespace glu_ckpt
