#include <fmt/format.h>

#include <numeric>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

/// Rows of FC1 as numbers of the contiguous order, in blocks of K: I[p] = C[h * F + b * K + o].
std::vector<i64> interleave(const std::vector<i64>& rows, i64 k) {
  const auto f = static_cast<i64>(rows.size()) / 2;
  std::vector<i64> mixed;
  for (i64 p = 0; p < 2 * f; ++p)
    mixed.push_back(rows[static_cast<std::size_t>(p / k % 2 * f + p / (2 * k) * k + p % k)]);
  return mixed;
}

std::vector<i64> pick(const std::vector<i64>& rows, const std::vector<RowRange>& ranges) {
  std::vector<i64> picked;
  for (const RowRange& range : ranges)
    for (i64 row = range.first; row < range.first + range.count; ++row)
      picked.push_back(rows[static_cast<std::size_t>(row)]);
  return picked;
}

/// Interleaving each rank's [gate; up] and putting the ranks end to end is interleaving the whole.
TEST(TpShard, RanksOfAnInterleavedFc1AreItsPieces) {
  int cases = 0;
  for (i64 f = 1; f <= 48; ++f)
    for (const i64 tp : {1, 2, 3, 4, 8})
      for (i64 k = 1; k <= f; ++k) {
        if (f % tp != 0 || f / tp % k != 0) continue;
        SCOPED_TRACE(fmt::format("F = {}, tp = {}, K = {}", f, tp, k));
        std::vector<i64> whole(static_cast<std::size_t>(2 * f));
        std::iota(whole.begin(), whole.end(), 0);
        const std::vector<i64> mixed = interleave(whole, k);
        std::vector<i64> joined;
        for (i64 rank = 0; rank < tp; ++rank) {
          const std::vector<i64> local = pick(whole, tp_shard_rows(contiguous(), f, tp, rank));
          EXPECT_EQ(local, pick(whole, tp_shard_rows(split(), f, tp, rank)));
          const std::vector<i64> piece = pick(mixed, tp_shard_rows(interleaved(k), f, tp, rank));
          EXPECT_EQ(interleave(local, k), piece);
          joined.insert(joined.end(), piece.begin(), piece.end());
        }
        EXPECT_EQ(joined, mixed);
        ++cases;
      }
  EXPECT_GT(cases, 300);
}

TEST(TpShard, ContiguousIsCutInEachHalf) {
  EXPECT_EQ(tp_shard_rows(contiguous(), 12, 3, 1), (std::vector<RowRange>{{4, 4}, {16, 4}}));
  EXPECT_EQ(tp_shard_rows(interleaved(2), 12, 3, 1), (std::vector<RowRange>{{8, 8}}));
}

TEST(TpShard, Refusals) {
  expect_error(ErrorCode::NotDivisible, [] { tp_shard_rows(contiguous(), 10, 4, 0); });
  // K divides F, but not the rank's share of it.
  expect_error(ErrorCode::NotDivisible, [] { tp_shard_rows(interleaved(4), 24, 4, 0); });
  expect_error(ErrorCode::Usage, [] { tp_shard_rows(contiguous(), 8, 2, 2); });
  expect_error(ErrorCode::Usage, [] { tp_shard_rows(contiguous(), 8, 0, 0); });
}

}  // namespace
}  // namespace glu_ckpt
