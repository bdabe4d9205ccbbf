#include "plan/clone_parts.hpp"

#include <algorithm>

#include "core/checked_math.hpp"
#include "plan/join_moves.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 round_down(i64 value, i64 multiple) { return value / multiple * multiple; }

/// Bytes from the first that the loops of `level` and deeper write to behind the last.
i64 extent(const Move& move, std::size_t level) {
  i64 bytes = move.run_bytes;
  for (std::size_t l = level; l < move.dims.size(); ++l) bytes += (move.dims[l].count - 1) * move.dims[l].dst_step;
  return bytes;
}

}  // namespace

ByteRange whole_blocks(i64 offset, i64 bytes, i64 block) {
  const i64 begin = round_up(offset, block);
  return {begin, std::max(begin, round_down(offset + bytes, block))};
}

CloneMap::CloneMap(std::span<const Move> moves, std::span<const i64> src_at, i64 dst_at, CloneLimits limits)
    : dst_at_(dst_at), limits_(limits) {
  if (dst_at < 0) return;
  const i64 least = std::max(limits.block, std::min(limits.min_bytes, limits.min_even_bytes));
  for (const Move& move : join_moves(moves)) {
    const i64 at = src_at[move.src];
    if (at < 0 || move.run_bytes < least) continue;
    // A run may be clonable where the phases agree, or differ from run to run.
    if (run_phase(move, at, dst_at, limits_.block).value_or(0) == 0) moves_.push_back({move, at});
  }
}

i64 CloneMap::block_end(i64 offset) const { return round_up(dst_at_ + offset, limits_.block) - dst_at_; }

CloneParts CloneMap::parts(i64 begin, i64 end) const {
  CloneParts parts;
  for (const Candidate& from : moves_)
    add_runs(from, 0, from.move.src_offset, from.move.dst_offset, {begin, end}, parts.cloned);
  std::ranges::sort(parts.cloned, {}, &CloneRun::dst_offset);
  i64 done = begin;
  for (const CloneRun& run : parts.cloned) {
    if (run.dst_offset > done) parts.written.push_back({done, run.dst_offset});
    done = run.dst_offset + run.bytes;
  }
  if (done < end) parts.written.push_back({done, end});
  return parts;
}

/// Loops are sorted by dst_step, and each iteration writes behind the one before it, so only the iterations that reach
/// into the range are made.
void CloneMap::add_runs(const Candidate& from, std::size_t level, i64 src, i64 dst, ByteRange range,
                        std::vector<CloneRun>& runs) const {
  const auto& dims = from.move.dims;
  while (level < dims.size() && dims[level].count == 1) ++level;
  if (level == dims.size()) return add_run(from, src, dst, range, runs);
  const MoveDim& dim = dims[level];
  const i64 iteration = extent(from.move, level + 1);
  const i64 first = range.begin < dst + iteration ? 0 : (range.begin - dst - iteration) / dim.dst_step + 1;
  const i64 last = range.end <= dst ? 0 : std::min(dim.count, (range.end - dst - 1) / dim.dst_step + 1);
  for (i64 i = first; i < last; ++i)
    add_runs(from, level + 1, src + i * dim.src_step, dst + i * dim.dst_step, range, runs);
}

void CloneMap::add_run(const Candidate& from, i64 src, i64 dst, ByteRange range, std::vector<CloneRun>& runs) const {
  const i64 shift = from.src_at + src - dst_at_ - dst;
  if (shift % limits_.block != 0) return;
  const i64 bytes = from.move.run_bytes;
  if (!limits_.accept(whole_blocks(dst_at_ + dst, bytes, limits_.block).bytes(), bytes)) return;
  const i64 begin = std::max(dst, range.begin);
  const i64 end = std::min(dst + bytes, range.end);
  if (begin >= end) return;
  const ByteRange blocks = whole_blocks(dst_at_ + begin, end - begin, limits_.block);
  if (blocks.bytes() == 0) return;
  const i64 at = blocks.begin - dst_at_;
  runs.push_back({from.move.src, src + at - dst, at, blocks.bytes()});
}

}  // namespace glu_ckpt
