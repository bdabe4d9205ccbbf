#include "plan/matrix_moves.hpp"

#include <fmt/format.h>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

/// A matrix whose rows are `block_rows` at a time, `gap` rows apart, of `element` byte elements.
Matrix matrix(i64 rows, i64 cols, i64 block_rows, i64 gap_rows, i64 element, i64 offset = 0) {
  Matrix m;
  m.rows = rows;
  m.cols = cols;
  m.element_bytes = element;
  m.place = {offset, block_rows, (block_rows + gap_rows) * cols * element, cols * element, element};
  return m;
}

Matrix transposed(i64 rows, i64 cols, i64 element) {
  Matrix m = matrix(rows, cols, rows, 0, element);
  m.place = {0, rows, rows * element, element, rows * element};
  return m;
}

i64 address(const Matrix& m, i64 r, i64 c) {
  const Placement& p = m.place;
  return p.offset + r / p.block_rows * p.block_step + r % p.block_rows * p.row_step + c * p.col_step;
}

/// Which source byte goes to which destination byte, move by move.
std::map<i64, i64> bytes_of(const std::vector<Move>& moves) {
  std::map<i64, i64> bytes;
  for (const Move& m : moves) {
    const auto& d = m.dims;
    for (i64 i = 0; i < d[0].count; ++i)
      for (i64 j = 0; j < d[1].count; ++j)
        for (i64 k = 0; k < d[2].count; ++k)
          for (i64 l = 0; l < d[3].count; ++l)
            for (i64 b = 0; b < m.run_bytes; ++b) {
              const i64 src =
                  m.src_offset + i * d[0].src_step + j * d[1].src_step + k * d[2].src_step + l * d[3].src_step;
              const i64 dst =
                  m.dst_offset + i * d[0].dst_step + j * d[1].dst_step + k * d[2].dst_step + l * d[3].dst_step;
              EXPECT_TRUE(bytes.emplace(dst + b, src + b).second) << "byte " << dst + b << " twice";
            }
  }
  return bytes;
}

void expect_moves(const Matrix& from, const Matrix& to) {
  std::map<i64, i64> expected;
  for (i64 r = 0; r < from.rows; ++r)
    for (i64 c = 0; c < from.cols; ++c)
      for (i64 b = 0; b < from.element_bytes; ++b) expected[address(to, r, c) + b] = address(from, r, c) + b;
  const std::vector<Move> moves = matrix_moves(from, to);
  EXPECT_EQ(bytes_of(moves), expected);
  for (const Move& move : moves)
    for (std::size_t i = 0; i + 1 < move.dims.size(); ++i) {
      if (move.dims[i].count == 1) {
        EXPECT_EQ(move.dims[i + 1].count, 1);
      }
      if (move.dims[i + 1].count > 1) {
        EXPECT_GE(move.dims[i].dst_step, move.dims[i + 1].dst_step);
      }
    }
}

TEST(MatrixMoves, AllPairsOfBlockSizes) {
  for (const i64 rows : {1, 2, 6, 12, 24, 36})
    for (i64 from = 1; from <= rows; ++from)
      for (i64 to = 1; to <= rows; ++to) {
        if (rows % from != 0 || rows % to != 0) continue;
        SCOPED_TRACE(fmt::format("{} rows, {} to {}", rows, from, to));
        expect_moves(matrix(rows, 3, from, from, 2), matrix(rows, 3, to, to, 2, 7));
        expect_moves(matrix(rows, 1, from, 0, 4, 8), matrix(rows, 1, to, to, 4));
      }
}

TEST(MatrixMoves, Transposes) {
  for (const auto& [rows, cols] : {std::pair<i64, i64>{1, 1}, {1, 5}, {5, 1}, {4, 4}, {6, 9}})
    for (const i64 element : {1, 2, 4, 8}) {
      expect_moves(transposed(rows, cols, element), matrix(rows, cols, rows, 0, element));
      expect_moves(matrix(rows, cols, rows, 0, element), transposed(rows, cols, element));
      expect_moves(transposed(rows, cols, element), transposed(rows, cols, element));
    }
}

TEST(MatrixMoves, WholeMatricesAreOneRun) {
  const auto moves = matrix_moves(matrix(12, 5, 12, 0, 2), matrix(12, 5, 12, 0, 2, 240));
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].run_bytes, 120);
  EXPECT_EQ(moves[0].runs(), 1);
}

TEST(MatrixMoves, NestedBlocksAreOneMoveOfWholeBlocks) {
  const auto moves = matrix_moves(matrix(64, 10, 64, 64, 2), matrix(64, 10, 8, 8, 2));
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].run_bytes, 8 * 10 * 2);
  EXPECT_EQ(moves[0].runs(), 8);
}

/// The number of moves follows the block sizes, not the number of rows.
TEST(MatrixMoves, BlocksThatDoNotNestTakeOneMoveForEachPiece) {
  EXPECT_EQ(matrix_moves(matrix(12, 3, 4, 4, 2), matrix(12, 3, 6, 6, 2)).size(), 4u);
  EXPECT_EQ(matrix_moves(matrix(12'000, 3, 4, 4, 2), matrix(12'000, 3, 6, 6, 2)).size(), 4u);
}

}  // namespace
}  // namespace glu_ckpt
