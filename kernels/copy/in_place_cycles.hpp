#pragma once
/// The cycles in which the blocks of an FC1 move when it is interleaved in place, cut into pieces that run at the same
/// time.

#include <vector>

#include "glu_ckpt/ops/device_copy.hpp"

namespace glu_ckpt {

/// Blocks that follow each other on one cycle of the permutation: the block at `start` goes to next_block(start),
/// the one there on to the next, `steps` times.
struct CycleSegment {
  u32 start = 0;
  u32 steps = 0;
  /// The slot in which the block at `start` was saved, because the segment before overwrites it; -1 for a cycle in one
  /// piece.
  i64 slot = -1;
};

/// Place, in blocks of K rows, to which the block at `at` goes; `half` is F / K. Source of the two maps:
/// docs/architecture.md, "Interleaving".
constexpr u32 next_block(u32 at, u32 half, bool interleave) {
  if (interleave) return at < half ? 2 * at : 2 * (at - half) + 1;
  return (at % 2) * half + at / 2;
}

/// Returns segments that have every block that moves once. Cycles longer than `most_steps` are cut. Pure.
std::vector<CycleSegment> cycle_segments(u32 half, bool interleave, u32 most_steps);

/// The plan that in_place_glu() follows.
struct InPlaceSchedule {
  std::vector<CycleSegment> segments;
  i64 block_bytes = 0;
  i64 slots = 0;
  /// Table of segments, in front of the saved blocks; a multiple of 16.
  i64 table_bytes = 0;
  /// Experts permuted at a time, whose saved blocks fit.
  i64 experts_at_once = 0;

  i64 scratch_bytes() const { return table_bytes + experts_at_once * slots * block_bytes; }
};

/// The schedule with the most experts at once whose scratch is at most `most_bytes`, or one expert.
/// Throws Usage where K does not divide F.
InPlaceSchedule in_place_schedule(const InPlaceGlu& glu, i64 most_bytes);

/// Launches the schedule in device memory: `table` has its segments, `saved` takes experts_at_once * slots blocks.
void run_in_place(const InPlaceGlu& glu, const InPlaceSchedule& schedule, const CycleSegment* table, std::byte* saved,
                  std::byte* data, GpuStream stream);

/// Throws Usage for scratch that is null, not aligned to 16 bytes or too small. It is no function of the .cu, which
/// cannot use fmt.
void check_in_place_scratch(const InPlaceSchedule& schedule, const std::byte* scratch, i64 scratch_bytes);

}  // namespace glu_ckpt
