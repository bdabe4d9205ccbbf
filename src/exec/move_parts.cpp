#include "exec/move_parts.hpp"

#include <algorithm>

namespace glu_ckpt {
namespace {

i64 extent(const Move& move, bool source, std::size_t from_dim) {
  i64 bytes = move.run_bytes;
  for (std::size_t l = from_dim; l < move.dims.size(); ++l)
    bytes += (move.dims[l].count - 1) * (source ? move.dims[l].src_step : move.dims[l].dst_step);
  return bytes;
}

Move slice(const Move& move, std::size_t dim, i64 first, i64 count) {
  Move part = move;
  part.src_offset += first * move.dims[dim].src_step;
  part.dst_offset += first * move.dims[dim].dst_step;
  part.dims[dim].count = count;
  if (count == 1) part.dims[dim] = {};
  return part;
}

/// Calls `use` with parts of `move` that together write exactly its bytes in [begin, end). Loops are
/// sorted by dst_step and do not overlap, so at most two slices a level are cut.
void clip(const Move& move, std::size_t dim, i64 begin, i64 end, const std::function<void(const Move&)>& use) {
  const i64 low = move.dst_offset;
  if (low >= begin && low + extent(move, false, 0) <= end) return use(move);
  if (low >= end || low + extent(move, false, 0) <= begin) return;
  while (dim < move.dims.size() && move.dims[dim].count == 1) ++dim;
  if (dim == move.dims.size()) {
    Move part = move;
    const i64 skip = std::max<i64>(0, begin - low);
    part.src_offset += skip;
    part.dst_offset += skip;
    part.run_bytes = std::min(end, low + move.run_bytes) - part.dst_offset;
    return use(part);
  }
  const i64 step = move.dims[dim].dst_step;
  const i64 count = move.dims[dim].count;
  const i64 inner = extent(move, false, dim + 1);
  // Slices [first, last) reach into the range; [whole_first, whole_last) lie in it altogether.
  const i64 first = begin <= low + inner - 1 ? 0 : (begin - low - inner) / step + 1;
  const i64 last = std::min(count, (end - low + step - 1) / step);
  const i64 whole_first = std::min(last, begin <= low ? 0 : (begin - low + step - 1) / step);
  const i64 whole_last = std::max(whole_first, std::min(last, end < low + inner ? 0 : (end - low - inner) / step + 1));
  for (i64 i = first; i < whole_first; ++i) clip(slice(move, dim, i, 1), dim, begin, end, use);
  if (whole_last > whole_first) use(slice(move, dim, whole_first, whole_last - whole_first));
  for (i64 i = whole_last; i < last; ++i) clip(slice(move, dim, i, 1), dim, begin, end, use);
}

}  // namespace

i64 source_window(const Move& move) { return extent(move, true, 0); }
i64 target_window(const Move& move) { return extent(move, false, 0); }

void clip_move(const Move& move, i64 begin, i64 end, const std::function<void(const Move&)>& use) {
  clip(move, 0, begin, end, use);
}

std::vector<i64> span_ends(std::span<const Move> moves) {
  std::vector<std::pair<i64, i64>> ranges;
  for (const Move& move : moves)
    if (move.bytes() > 0) ranges.emplace_back(move.dst_offset, move.dst_offset + target_window(move));
  std::ranges::sort(ranges);
  std::vector<i64> ends;
  for (const auto& [begin, end] : ranges)
    if (ends.empty() || begin >= ends.back())
      ends.push_back(end);
    else
      ends.back() = std::max(ends.back(), end);
  return ends;
}

std::pair<Move, Move> halve_move(const Move& move) {
  std::size_t widest = 0;
  i64 spread = 0;
  for (std::size_t l = 0; l < move.dims.size(); ++l)
    if (const i64 bytes = (move.dims[l].count - 1) * move.dims[l].src_step; bytes > spread) {
      spread = bytes;
      widest = l;
    }
  const i64 count = move.dims[widest].count;
  return {slice(move, widest, 0, count / 2), slice(move, widest, count / 2, count - count / 2)};
}

}  // namespace glu_ckpt
