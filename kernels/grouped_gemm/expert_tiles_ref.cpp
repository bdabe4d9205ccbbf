/// The oracle of make_expert_tiles, and the words for wrong splits.

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "kernels/grouped_gemm/expert_tiles.hpp"

namespace glu_ckpt {

SplitStatus split_status(std::span<const i64> splits, i64 rows) {
  i64 sum = 0;
  for (std::size_t e = 0; e < splits.size(); ++e) {
    const auto expert = static_cast<i32>(e);
    if (splits[e] < 0) return {SplitFault::Negative, expert, splits[e], sum, rows};
    const auto next = checked_add(sum, splits[e]);
    if (!next || *next > rows) return {SplitFault::TooMany, expert, splits[e], sum, rows};
    sum = *next;
  }
  return {};
}

void make_expert_tiles_ref(std::span<const i64> splits, i64 rows, i32 tile_rows, const ExpertTiles& tiles) {
  *tiles.status = split_status(splits, rows);
  const bool wrong = tiles.status->fault != SplitFault::None;
  tiles.first_row[0] = 0;
  tiles.first_tile[0] = 0;
  std::fill_n(tiles.taken, ExpertTiles::kTakers, 0);
  for (std::size_t e = 0; e < splits.size(); ++e) {
    const i64 split = wrong ? 0 : splits[e];
    tiles.first_row[e + 1] = tiles.first_row[e] + split;
    tiles.written[e] = 0;
    tiles.first_tile[e + 1] = tiles.first_tile[e] + static_cast<i32>((split + tile_rows - 1) / tile_rows);
  }
}

void check_split_status(const SplitStatus& status) {
  if (status.fault == SplitFault::Negative) fail(ErrorCode::Usage, {}, "split {} is {}", status.expert, status.value);
  if (status.fault == SplitFault::TooMany)
    fail(ErrorCode::Usage, {}, "splits up to number {} take {} + {} rows; there are {}", status.expert, status.before,
         status.value, status.rows);
}

}  // namespace glu_ckpt
