#pragma once
/// Moves with the fewest loops and the longest runs.

#include <span>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Sorts the loops, and folds what is adjacent on both sides into longer runs and fewer loops.
void fold_loops(Move& move);

/// Returns the same copies in fewer moves with longer runs: moves from one tensor to one other whose runs are adjacent
/// on both sides, as gate and up are where their order stays, become one. Order: by source tensor and by offset.
std::vector<Move> join_moves(std::span<const Move> moves);

}  // namespace glu_ckpt
