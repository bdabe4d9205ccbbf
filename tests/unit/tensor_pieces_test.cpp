#include "format/tensor_pieces.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace glu_ckpt {
namespace {

i64 product(const std::vector<i64>& shape) {
  return std::accumulate(shape.begin(), shape.end(), i64{1}, [](i64 a, i64 b) { return a * b; });
}

/// A tensor whose element i has the value i, cut along random axes into pieces that are stored one after
/// another with their axes permuted.
struct Scattered {
  std::vector<i64> shape;
  std::vector<TensorPiece> pieces;
  std::vector<u32> file;

  void add(const std::vector<i64>& start, const std::vector<i64>& extents, std::mt19937& random) {
    TensorPiece piece{start, extents, std::vector<i64>(extents.size()), static_cast<i64>(file.size() * 4)};
    std::vector<std::size_t> order(extents.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
    i64 step = 4;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
      piece.strides[*axis] = step;
      step *= extents[*axis];
    }
    const std::size_t base = file.size();
    file.resize(base + static_cast<std::size_t>(product(extents)));
    const std::vector<i64> tensor_step = dense_strides(shape, 1);
    for (i64 i = 0; i < product(extents); ++i) {
      i64 rest = i;
      i64 value = 0;
      i64 at = 0;
      for (std::size_t axis = extents.size(); axis-- > 0;) {
        const i64 index = rest % extents[axis];
        rest /= extents[axis];
        value += (start[axis] + index) * tensor_step[axis];
        at += index * piece.strides[axis] / 4;
      }
      file[base + static_cast<std::size_t>(at)] = static_cast<u32>(value);
    }
    pieces.push_back(std::move(piece));
  }

  void cut(const std::vector<i64>& start, const std::vector<i64>& extents, std::mt19937& random, int depth) {
    const std::size_t axis = random() % std::max<std::size_t>(1, extents.size());
    if (depth == 0 || extents.empty() || extents[axis] < 2) return add(start, extents, random);
    const i64 at = 1 + static_cast<i64>(random() % static_cast<unsigned>(extents[axis] - 1));
    auto low = extents;
    auto high = extents;
    auto from = start;
    low[axis] = at;
    high[axis] -= at;
    from[axis] += at;
    cut(start, low, random, depth - 1);
    cut(from, high, random, depth - 1);
  }
};

TEST(TensorPieces, EveryRangeOfEveryTilingReadsBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Scattered tensor;
    for (auto axes = random() % 5; axes > 0; --axes) tensor.shape.push_back(1 + static_cast<i64>(random() % 7));
    tensor.cut(std::vector<i64>(tensor.shape.size(), 0), tensor.shape, random, 4);
    const i64 bytes = 4 * product(tensor.shape);
    for (int range = 0; range < 20; ++range) {
      const i64 begin = static_cast<i64>(random() % static_cast<unsigned>(bytes));
      const i64 count = 1 + static_cast<i64>(random() % static_cast<unsigned>(bytes - begin));
      std::vector<std::byte> out(static_cast<std::size_t>(count), std::byte{0xEE});
      const ReadFile read = [&](std::span<std::byte> to, i64 offset) {
        ASSERT_LE(offset + static_cast<i64>(to.size()), static_cast<i64>(tensor.file.size() * 4));
        std::memcpy(to.data(), reinterpret_cast<const std::byte*>(tensor.file.data()) + offset, to.size());
      };
      for (const TensorPiece& piece : tensor.pieces) {
        const auto [first, last] = piece_extent(piece, tensor.shape, 4);
        EXPECT_LE(0, first);
        EXPECT_LE(last, bytes);
        read_piece(piece, tensor.shape, 4, begin, out, read);
      }
      std::vector<u32> whole(static_cast<std::size_t>(bytes / 4));
      std::iota(whole.begin(), whole.end(), 0U);
      EXPECT_EQ(std::memcmp(out.data(), reinterpret_cast<const std::byte*>(whole.data()) + begin, out.size()), 0)
          << "round " << round << " bytes [" << begin << ", " << begin + count << ")";
    }
  }
}

TEST(TensorPieces, LargeTransposedPieceIsReadInBoundedWindows) {
  // [3000, 700] of 2 bytes stored column by column: rows are runs of single elements.
  const std::vector<i64> shape{3000, 700};
  const TensorPiece piece{{0, 0}, shape, {2, 6000}, 0};
  std::vector<std::uint16_t> file(3000 * 700);
  for (std::size_t r = 0; r < 3000; ++r)
    for (std::size_t c = 0; c < 700; ++c) file[c * 3000 + r] = static_cast<std::uint16_t>(r * 700 + c);
  i64 calls = 0;
  const ReadFile read = [&](std::span<std::byte> to, i64 offset) {
    ++calls;
    ASSERT_LE(static_cast<i64>(to.size()), kPieceWindowBytes);
    std::memcpy(to.data(), reinterpret_cast<const std::byte*>(file.data()) + offset, to.size());
  };
  std::vector<std::uint16_t> out(file.size());
  read_piece(piece, shape, 2, 0, std::as_writable_bytes(std::span(out)), read);
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], static_cast<std::uint16_t>(i));
  EXPECT_LE(calls, 8);
}

}  // namespace
}  // namespace glu_ckpt
