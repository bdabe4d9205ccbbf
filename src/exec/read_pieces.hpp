#pragma once
/// In which pieces the bytes that moves want are read.

#include <span>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// What is read at once: a window of the source, gaps included, that several moves may want something of; or the runs
/// of one move.
struct ReadPiece {
  std::vector<Move> moves;
  bool window = false;
  std::size_t src = 0;
  /// Of the window, or the move's first byte.
  i64 begin = 0;
  /// Bytes of the window, or of all runs.
  i64 wanted = 0;
};

/// Dense windows are read whole, long runs one by one, short runs in windows that are not too wasteful; a move whose
/// window is neither is halved. Windows that overlap or touch become one: gate and up in turn are read once, and moved
/// together. But for single runs no piece is longer than `limit_bytes`, rounded up to `alignment`. Windows come first,
/// in the source's order.
std::vector<ReadPiece> make_pieces(std::span<const Move> moves, i64 limit_bytes, i64 alignment);

}  // namespace glu_ckpt
