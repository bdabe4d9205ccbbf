/// The rows that TMA brings of every layout, emulated from the boxes' definition, are compared with the rows that the
/// layout names.

#include "kernels/mlp/tma_boxes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

using Code = std::uint16_t;
using Row = std::vector<Code>;

constexpr i64 kCodeBytes = sizeof(Code);

/// Stored rows, each with its place as its values: row r, column c holds r cols + c + 1, so that no zero is among them.
class Codes {
 public:
  Codes(i64 rows, i64 cols) : cols_(cols), memory_(static_cast<std::size_t>(rows * cols) + kSpare) {
    for (i64 i = 0; i < rows * cols; ++i) data()[i] = static_cast<Code>(i + 1);
    EXPECT_LT(rows * cols, 1 << 16);
  }

  Code* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (kAlignment - address % kAlignment) % kAlignment / sizeof(Code);
  }
  const std::byte* bytes() { return reinterpret_cast<const std::byte*>(data()); }

  Row row(i64 number) const {
    Row row(static_cast<std::size_t>(cols_));
    for (i64 c = 0; c < cols_; ++c) row[static_cast<std::size_t>(c)] = static_cast<Code>(number * cols_ + c + 1);
    return row;
  }

 private:
  static constexpr std::uintptr_t kAlignment = 16;
  static constexpr std::size_t kSpare = kAlignment / sizeof(Code);
  i64 cols_;
  std::vector<Code> memory_;
};

StoredMatrix stored(const std::byte* data, i64 rows, i64 cols, const Placement& place) {
  return {Dtype::BF16, rows, cols, {data, place}, {}, rows};
}

/// A matrix as an array of three axes, as the tensor map describes it.
struct Box {
  const StoredMatrix& matrix;
  const TmaBoxes& boxes;

  i64 block_rows() const { return std::min(matrix.first.place.block_rows, matrix.rows); }

  /// The element at these coordinates, 0 where one of them is outside.
  Code at(i64 col, i64 in_block, i64 block) const {
    if (col >= matrix.cols || in_block >= block_rows() || block >= matrix.rows / block_rows()) return 0;
    const Placement& place = matrix.first.place;
    Code code;
    std::memcpy(&code,
                matrix.first.data + place.offset + col * kCodeBytes + in_block * place.row_step +
                    block * std::max(place.block_step, place.row_step),
                sizeof code);
    return code;
  }

  /// Rows of kTileCols values, in the order in which they come to lie in shared memory.
  void load(i64 col, i64 in_block, i64 block, std::vector<Row>& rows) const {
    for (i64 b = 0; b < boxes.blocks; ++b)
      for (i64 r = 0; r < boxes.rows; ++r) {
        Row& row = rows.emplace_back();
        for (i64 c = 0; c < kTileCols; ++c) row.push_back(at(col + c, in_block + r, block + b));
      }
  }
};

/// Rows `first` to `first` + `half`, columns `col` to `col` + kTileCols: the boxes that a kernel asks for.
std::vector<Row> load_half(const Box& box, int half, i64 first, i64 col) {
  std::vector<Row> rows;
  i64 block = first / box.block_rows();
  i64 in_block = first % box.block_rows();
  for (i64 r = 0; r < half; r += box.boxes.box_rows) {
    box.load(col, in_block, block, rows);
    in_block += box.boxes.box_rows;
    if (in_block >= box.block_rows()) {
      in_block = 0;
      ++block;
    }
  }
  return rows;
}

/// The same from the matrix's rows; what lies outside is 0.
template <typename RowOf>
std::vector<Row> expected_half(const StoredMatrix& matrix, int half, i64 first, i64 col, const RowOf& row_of) {
  std::vector<Row> rows;
  for (i64 r = first; r < first + half; ++r) {
    Row row = r < matrix.rows ? row_of(r) : Row();
    row.erase(row.begin(), row.begin() + std::min(col, static_cast<i64>(row.size())));
    row.resize(kTileCols);
    rows.push_back(row);
  }
  return rows;
}

/// `row_of(r)` are the values of the matrix's row r, `boxes` those of halves of so many rows.
template <typename RowOf>
void expect_half_rows(const StoredMatrix& matrix, int half, const TmaBoxes& boxes, const RowOf& row_of) {
  SCOPED_TRACE("halves of " + std::to_string(half) + " rows");
  ASSERT_EQ(boxes.rows * boxes.blocks, boxes.box_rows);
  ASSERT_EQ(half % boxes.box_rows, 0);
  // A box begins where the swizzle's pattern of 8 rows does.
  ASSERT_EQ(boxes.box_rows % 8, 0);
  // The second of two halves may lie wholly behind the rows.
  for (i64 first = 0; first < matrix.rows + half; first += half)
    for (i64 col = 0; col < matrix.cols; col += kTileCols)
      ASSERT_EQ(load_half({matrix, boxes}, half, first, col), expected_half(matrix, half, first, col, row_of))
          << "rows from " << first << ", columns from " << col;
}

/// Of a matrix that both kernels can read.
template <typename RowOf>
void expect_rows(const StoredMatrix& matrix, const RowOf& row_of) {
  for (const int half : kHalfLengths) expect_half_rows(matrix, half, tma_boxes(matrix, half).value(), row_of);
}

bool can_be_read(int half, i64 block_rows, i64 blocks) {
  return blocks == 1 || block_rows % 8 == 0 || half % block_rows == 0;
}

/// Gate and up of an FC1 in blocks of K; F = K is a contiguous one.
void expect_fused(i64 block_rows, i64 blocks, i64 cols) {
  SCOPED_TRACE("K " + std::to_string(block_rows) + ", " + std::to_string(blocks) + " blocks, " + std::to_string(cols) +
               " columns");
  const i64 width = block_rows * blocks;
  Codes codes(2 * width, cols);
  for (const Role role : {Role::Gate, Role::Up}) {
    const StoredMatrix matrix = stored(
        codes.bytes(), width, cols,
        place_matrix({.stored_rows = 2 * width, .cols = cols, .element_bytes = kCodeBytes}, role, true, block_rows));
    for (const int half : kHalfLengths) {
      const auto boxes = tma_boxes(matrix, half);
      ASSERT_EQ(boxes.has_value(), can_be_read(half, block_rows, blocks));
      if (!boxes) continue;
      expect_half_rows(matrix, half, *boxes, [&](i64 row) {
        const i64 block = row / block_rows * 2 + (role == Role::Up ? 1 : 0);
        return codes.row(block * block_rows + row % block_rows);
      });
    }
  }
}

TEST(TmaBoxes, BringTheRowsOfEveryBlockSize) {
  for (i64 block_rows = 1; block_rows <= 300; ++block_rows)
    for (const i64 blocks : {1, 2, 3, 8}) expect_fused(block_rows, blocks, 8);
}

TEST(TmaBoxes, BringColumnsBehindTheFirstTile) {
  for (const i64 block_rows : {1, 4, 24, 32, 96, 128, 160})
    for (const i64 cols : {64, 72, 136}) expect_fused(block_rows, 160 / block_rows, cols);
}

TEST(TmaBoxes, BringMatricesOfTheirOwn) {
  for (const i64 rows : {1, 7, 8, 100, 127, 128, 129, 200, 256, 257, 300, 1000}) {
    SCOPED_TRACE(rows);
    Codes codes(rows, 16);
    // Split gate, up or down, and the second of two experts in a grouped tensor.
    const StoredPart whole{.stored_rows = rows, .cols = 16, .element_bytes = kCodeBytes};
    const StoredMatrix split = stored(codes.bytes(), rows, 16, place_matrix(whole, Role::Down, false, 0));
    expect_rows(split, [&](i64 row) { return codes.row(row); });
    const StoredPart second{.stored_rows = rows / 2, .cols = 16, .element_bytes = kCodeBytes, .slot = 1};
    if (rows < 2) continue;
    const StoredMatrix grouped = stored(codes.bytes(), rows / 2, 16, place_matrix(second, Role::Gate, false, 0));
    expect_rows(grouped, [&](i64 row) { return codes.row(rows / 2 + row); });
  }
}

TEST(TmaBoxes, BringDenseCopiesWithoutTheirPadding) {
  for (const i64 rows : {5, 128, 300}) {
    Codes codes(rows, 24);
    const StoredMatrix matrix = dense_matrix(codes.bytes(), Dtype::F16, rows, 19, 24);
    EXPECT_EQ(matrix.dtype, Dtype::F16);
    expect_rows(matrix, [&](i64 row) {
      Row values = codes.row(row);
      values.resize(19);
      return values;
    });
  }
}

/// A matrix that can be read, [64, 64] in blocks of 32 rows, to be spoilt.
StoredMatrix readable(const std::byte* data) { return stored(data, 64, 64, {0, 32, 8192, 128, 2}); }

TEST(TmaBoxes, NothingForWhatTmaCannotRead) {
  Codes codes(128, 64);
  const auto boxes = [&](const auto& spoil) {
    StoredMatrix matrix = readable(codes.bytes());
    spoil(matrix);
    return tma_boxes(matrix).has_value();
  };
  EXPECT_TRUE(boxes([](StoredMatrix&) {}));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.first.data += 2; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.first.data += 8; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.first.place.offset = 2; }));
  EXPECT_TRUE(boxes([](StoredMatrix& m) {
    m.first.data += 2;
    m.first.place.offset = -2;
  }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.first.place.row_step = 136; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.first.place.block_step = 8200; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.first.place.row_step = i64{1} << 40; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.first.place.block_step = i64{1} << 40; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.dtype = Dtype::F32; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.tail_row = 32; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.rows = m.tail_row = i64{1} << 31; }));
  EXPECT_FALSE(boxes([](StoredMatrix& m) { m.cols = i64{1} << 31; }));
}

TEST(TmaBoxes, NothingForTransposedMatrices) {
  Codes codes(64, 64);
  for (const i64 block_rows : {1, 8, 32}) {
    const StoredPart part{.axes = Axes::InOut, .stored_rows = 64, .cols = 64, .element_bytes = kCodeBytes};
    EXPECT_FALSE(tma_boxes(stored(codes.bytes(), 32, 64, place_matrix(part, Role::Gate, true, block_rows))));
  }
}

}  // namespace
}  // namespace glu_ckpt
