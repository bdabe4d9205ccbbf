#include "kernels/copy/in_place_cycles.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// Each cut costs one more read and write of a block: two in 64 are 3 % more bytes. Longer pieces leave a GPU idle
/// when there are few blocks.
constexpr u32 kMostSteps = 64;

}  // namespace

std::vector<CycleSegment> cycle_segments(u32 half, bool interleave, u32 most_steps) {
  std::vector<CycleSegment> segments;
  std::vector<bool> seen(std::size_t{2} * half);
  i64 slots = 0;
  for (u32 start = 0; start < 2 * half; ++start) {
    if (seen[start]) continue;
    u32 length = 0;
    for (u32 at = start; !seen[at]; at = next_block(at, half, interleave)) {
      seen[at] = true;
      ++length;
    }
    if (length == 1) continue;
    const u32 pieces = (length + most_steps - 1) / most_steps;
    u32 at = start;
    for (u32 piece = 0; piece < pieces; ++piece) {
      const u32 steps = length / pieces + (piece < length % pieces ? 1 : 0);
      segments.push_back({at, steps, pieces == 1 ? -1 : slots++});
      for (u32 step = 0; step < steps; ++step) at = next_block(at, half, interleave);
    }
  }
  // The longest first, so that none is left over when the others are done.
  std::stable_sort(segments.begin(), segments.end(),
                   [](const CycleSegment& a, const CycleSegment& b) { return a.steps > b.steps; });
  return segments;
}

InPlaceSchedule in_place_schedule(const InPlaceGlu& glu, i64 most_bytes) {
  if (glu.block_rows <= 0 || glu.rows < 0 || glu.row_bytes < 0 || glu.rows % (2 * glu.block_rows) != 0)
    fail(ErrorCode::Usage, {}, "in_place_glu: {} rows of {} bytes; interleaved:{} needs a multiple of {}", glu.rows,
         glu.row_bytes, glu.block_rows, 2 * glu.block_rows);
  const i64 half = glu.rows / (2 * glu.block_rows);
  if (half > std::numeric_limits<u32>::max() / 2)
    fail(ErrorCode::Usage, {}, "in_place_glu: {} rows in blocks of {} are too many blocks", glu.rows, glu.block_rows);
  InPlaceSchedule schedule;
  schedule.block_bytes = glu.block_rows * glu.row_bytes;
  schedule.segments = cycle_segments(static_cast<u32>(half), glu.interleave, kMostSteps);
  for (const CycleSegment& segment : schedule.segments) schedule.slots = std::max(schedule.slots, segment.slot + 1);
  schedule.table_bytes = static_cast<i64>((schedule.segments.size() * sizeof(CycleSegment) + 15) / 16 * 16);
  const i64 expert_bytes = schedule.slots * schedule.block_bytes;
  const i64 experts = std::max<i64>(1, glu.experts);
  schedule.experts_at_once =
      expert_bytes == 0 ? experts : std::clamp<i64>((most_bytes - schedule.table_bytes) / expert_bytes, 1, experts);
  return schedule;
}

void check_in_place_scratch(const InPlaceSchedule& schedule, const std::byte* scratch, i64 scratch_bytes) {
  const i64 wanted_bytes = schedule.scratch_bytes();
  if (scratch_bytes < wanted_bytes)
    fail(ErrorCode::Usage, {}, "in_place_glu: {} bytes of scratch; {} are needed for one expert", scratch_bytes,
         wanted_bytes);
  if (wanted_bytes > 0 && (scratch == nullptr || reinterpret_cast<std::uintptr_t>(scratch) % 16 != 0))
    fail(ErrorCode::Usage, {}, "in_place_glu: scratch at {}; an address that is a multiple of 16 is needed",
         static_cast<const void*>(scratch));
}

i64 in_place_scratch_bytes(const InPlaceGlu& glu, i64 most_bytes) {
  return in_place_schedule(glu, most_bytes).scratch_bytes();
}

}  // namespace glu_ckpt
