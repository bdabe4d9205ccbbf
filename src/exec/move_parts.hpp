#pragma once
/// Functions that cut moves to the size of a buffer.

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Runs of a page or more are read straight to their place; shorter ones through a window of the source, as a system
/// call costs about what copying a page does.
constexpr i64 kDirectRunBytes = 4096;
/// A window may hold at most this many times the bytes that are wanted of it.
constexpr i64 kMaxReadWaste = 8;

/// Bytes from the first byte that a move reads to behind the last.
i64 source_window(const Move& move);
/// Bytes from the first byte that a move writes to behind the last.
i64 target_window(const Move& move);

/// Calls `use` with parts of `move` that together write exactly its bytes in [begin, end).
void clip_move(const Move& move, i64 begin, i64 end, const std::function<void(const Move&)>& use);

/// Calls `use` with where each run begins, in the source and in the target.
template <typename Use>
void for_each_run(const Move& move, const Use& use) {
  const auto& d = move.dims;
  for (i64 i = 0; i < d[0].count; ++i)
    for (i64 j = 0; j < d[1].count; ++j)
      for (i64 k = 0; k < d[2].count; ++k)
        for (i64 l = 0; l < d[3].count; ++l)
          use(move.src_offset + i * d[0].src_step + j * d[1].src_step + k * d[2].src_step + l * d[3].src_step,
              move.dst_offset + i * d[0].dst_step + j * d[1].dst_step + k * d[2].dst_step + l * d[3].dst_step);
}

/// The places where a target can be cut so that every move that writes to it stays whole: the ends of its spans, in
/// order, the last one where the moves end. Alternating gate and up rows are one span, and each expert is one.
std::vector<i64> span_ends(std::span<const Move> moves);

/// The two halves of a move of more than one run, cut along the loop that spreads furthest over the source.
std::pair<Move, Move> halve_move(const Move& move);

}  // namespace glu_ckpt
