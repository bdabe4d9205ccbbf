#pragma once
/// Moves cut to what fits.

#include <functional>
#include <span>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Runs of a page or more are read straight to their place; shorter ones through a window of the source, as a system
/// call costs about what copying a page does.
constexpr i64 kDirectRunBytes = 4096;
/// A window may hold at most this many times the bytes that are wanted of it.
constexpr i64 kMaxReadWaste = 8;

/// Bytes from the first byte that a move reads to behind the last.
i64 source_window(const Move& move);
/// The same of what it writes.
i64 target_window(const Move& move);

/// Calls `use` with parts of `move` that together write exactly its bytes in [begin, end).
void clip_move(const Move& move, i64 begin, i64 end, const std::function<void(const Move&)>& use);

/// The two halves of a move of more than one run, cut along the loop that spreads furthest over the source.
std::pair<Move, Move> halve_move(const Move& move);

}  // namespace glu_ckpt
