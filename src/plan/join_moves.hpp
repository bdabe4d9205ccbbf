#pragma once
/// Moves with the fewest loops and the longest runs, and how their runs lie in blocks of the files on both sides: only
/// where they lie alike can they be shared, read past the page cache, or written at once.

#include <optional>
#include <span>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Sorts the loops, and folds what is adjacent on both sides into longer runs and fewer loops.
void fold_loops(Move& move);

/// Returns the same copies in fewer moves with longer runs: moves from one tensor to one other whose runs are adjacent
/// on both sides, as gate and up are where their order stays, become one. Order: by source tensor and by offset.
std::vector<Move> join_moves(std::span<const Move> moves);

/// Returns how far into a block the source of each run begins, counted from how far its target does, modulo `block`: 0
/// where both lie alike. `src_at` and `dst_at` are where the first bytes of the two tensors lie in their files. None
/// where that is not one number for all runs.
inline std::optional<i64> run_phase(const Move& move, i64 src_at, i64 dst_at, i64 block) {
  for (const MoveDim& dim : move.dims)
    if (dim.count > 1 && (dim.src_step - dim.dst_step) % block != 0) return std::nullopt;
  const i64 phase = (src_at + move.src_offset - dst_at - move.dst_offset) % block;
  return phase < 0 ? phase + block : phase;
}

}  // namespace glu_ckpt
