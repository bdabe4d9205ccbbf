#pragma once
/// Chooses the pieces in which the bytes that moves want are read.

#include <span>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Bytes that are read at once: a window of the source, gaps included, in which several moves may have bytes, or the
/// runs of one move.
struct ReadPiece {
  std::vector<Move> moves;
  bool window = false;
  std::size_t src = 0;
  /// The first byte of the window, or of the move.
  i64 begin = 0;
  /// The bytes of the window, or of all runs together.
  i64 wanted = 0;
};

/// Dense windows are read whole, long runs one by one, short runs in windows that are not too wasteful; a move whose
/// window is neither is halved. Windows that overlap or touch become one, so that alternating gate and up rows are read
/// once and moved together. Except for single runs, no piece is longer than `limit_bytes`, rounded up to `alignment`.
/// Windows come first, in the source's order.
std::vector<ReadPiece> make_pieces(std::span<const Move> moves, i64 limit_bytes, i64 alignment);

}  // namespace glu_ckpt
