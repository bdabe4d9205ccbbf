#include "exec/host_transpose.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "exec/backends.hpp"
#include "kernels/copy/strided_copy.hpp"
#include "support/copy_cases.hpp"

namespace glu_ckpt {
namespace {

constexpr std::byte kPoison{0xa5};
constexpr i64 kGuardBytes = 64;

struct Sizes {
  i64 element_bytes, downs, acrosses;
  /// Elements from one to the next along a row, on either side; and those between two rows.
  i64 src_gap, dst_gap, row_gap;
  i64 src_offset, dst_offset;
  std::string describe() const {
    return fmt::format("{} bytes, {} x {}, steps {} and {}, {} between rows, at {} and {}", element_bytes, downs,
                       acrosses, src_gap, dst_gap, row_gap, src_offset, dst_offset);
  }
};

/// Rows in any order, as those of experts in tensors of their own may be; none overlaps another.
std::vector<i64> shuffled_rows(i64 rows, i64 row_bytes, std::mt19937& random) {
  std::vector<i64> offsets(static_cast<std::size_t>(rows));
  for (i64 r = 0; r < rows; ++r) offsets[static_cast<std::size_t>(r)] = r * row_bytes;
  std::ranges::shuffle(offsets, random);
  return offsets;
}

/// Every path writes what the definition says, and no byte beside it.
void expect_all_paths(const Sizes& sizes, std::mt19937& random) {
  SCOPED_TRACE(sizes.describe());
  const i64 element = sizes.element_bytes;
  const i64 src_row = (sizes.acrosses * sizes.src_gap + sizes.row_gap) * element;
  const i64 dst_row = (sizes.downs * sizes.dst_gap + sizes.row_gap) * element;
  HostTranspose shape{element, shuffled_rows(sizes.downs, src_row, random),
                      shuffled_rows(sizes.acrosses, dst_row, random), sizes.src_gap * element, sizes.dst_gap * element};
  // Exactly as long as what is read, so that a load beyond the last element is out of bounds.
  const i64 src_bytes =
      sizes.src_offset + (sizes.downs - 1) * src_row + ((sizes.acrosses - 1) * sizes.src_gap + 1) * element;
  const std::vector<std::byte> src = support::coded_bytes(src_bytes, 1);
  const std::size_t dst_bytes =
      static_cast<std::size_t>(kGuardBytes + sizes.dst_offset + sizes.acrosses * dst_row + kGuardBytes);
  std::vector<std::byte> expected(dst_bytes, kPoison);
  for (i64 d = 0; d < sizes.downs; ++d)
    for (i64 a = 0; a < sizes.acrosses; ++a)
      std::memcpy(&expected[static_cast<std::size_t>(kGuardBytes + sizes.dst_offset +
                                                     shape.across[static_cast<std::size_t>(a)] + d * shape.dst_step)],
                  &src[static_cast<std::size_t>(sizes.src_offset + shape.down[static_cast<std::size_t>(d)] +
                                                a * shape.src_step)],
                  static_cast<std::size_t>(element));
  for (const SimdLevel path : simd_levels()) {
    std::vector<std::byte> found(dst_bytes, kPoison);
    transpose_in_host(shape, src.data() + sizes.src_offset, found.data() + kGuardBytes + sizes.dst_offset, path);
    const auto at = std::ranges::mismatch(expected, found).in1 - expected.begin();
    ASSERT_TRUE(expected == found) << "path " << static_cast<int>(path) << ", byte " << at;
  }
}

TEST(HostTranspose, EveryPathAtEveryEdge) {
  std::mt19937 random(1);
  for (const i64 element : {1, 2, 4, 8}) {
    // Around a lane, a register, a tile, and two of them.
    const i64 lane = 16 / element;
    for (const i64 downs :
         {i64{1}, lane - 1, lane, 2 * lane, 4 * lane - 1, 4 * lane, 4 * lane + 1, 8 * lane, 16 * lane + 3})
      for (const i64 acrosses : {i64{1}, lane, lane + 1, 32 * lane - 1, 32 * lane, 32 * lane + 5})
        for (const i64 src_gap : {1, 2, 3})
          if (downs > 0) expect_all_paths({element, downs, acrosses, src_gap, 1, 0, 0, 0}, random);
  }
}

TEST(HostTranspose, RandomSizes) {
  std::mt19937 random(2);
  const auto number = [&](i64 least, i64 most) { return std::uniform_int_distribution<i64>(least, most)(random); };
  for (int round = 0; round < 400; ++round)
    expect_all_paths({i64{1} << number(0, 3), number(1, 150), number(1, 150), number(1, 3), number(0, 3) == 0 ? 2 : 1,
                      number(0, 9), number(0, 17), number(0, 17)},
                     random);
}

TEST(HostTranspose, NothingOfNothing) {
  std::byte byte = kPoison;
  for (const SimdLevel path : simd_levels())
    for (const auto& [downs, acrosses] : {std::pair(0, 3), std::pair(3, 0), std::pair(0, 0)}) {
      HostTranspose shape{2, std::vector<i64>(static_cast<std::size_t>(downs)),
                          std::vector<i64>(static_cast<std::size_t>(acrosses)), 2, 2};
      transpose_in_host(shape, &byte, &byte, path);
      EXPECT_EQ(byte, kPoison);
    }
}

/// The last way is always there; which others are depends on the processor.
TEST(HostTranspose, Paths) {
  const auto paths = simd_levels();
  ASSERT_FALSE(paths.empty());
  EXPECT_EQ(paths.back(), SimdLevel::Plain);
  EXPECT_TRUE(std::ranges::is_sorted(paths));
}

/// Moves of every shape that the kernels are tested with, one tensor on each side: the bytes of the definition, and
/// nothing beside them.
TEST(CopyInHost, IsWhatMovesSay) {
  std::vector<support::CopyCase> cases = support::copy_cases();
  for (unsigned seed = 0; seed < 300; ++seed) cases.push_back(support::random_copy_case(seed));
  for (const support::CopyCase& item : cases) {
    SCOPED_TRACE(item.name);
    support::HostTensors expected(item), found(item);
    strided_copy_ref(item.moves, expected.srcs, expected.dsts);
    for (std::size_t src = 0; src < item.src_bytes.size(); ++src)
      for (std::size_t dst = 0; dst < item.dst_bytes.size(); ++dst) {
        std::vector<Move> moves;
        for (const Move& move : item.moves)
          if (move.src == src && move.dst == dst) moves.push_back(move);
        copy_in_host(moves, found.srcs[src], found.dsts[dst]);
      }
    ASSERT_TRUE(expected.dst == found.dst);
  }
}

}  // namespace
}  // namespace glu_ckpt
