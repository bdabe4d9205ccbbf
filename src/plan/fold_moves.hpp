#pragma once
/// Moves of a plan made ready for a launch: they have addresses instead of tensors, and moves that differ only by
/// constant steps are folded into one. Pure, so that it is tested without a device.

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Loops of a copy. A move brings at most 4, and folding adds one for gate and up, experts, layers.
constexpr int kMaxCopyDims = 6;

/// Runs of bytes at regular steps; the same for every pair of a batch. dims[0 .. num_dims) have counts above 1; the
/// outermost comes first, in the order in which a device walks them fastest.
struct CopyShape {
  std::array<MoveDim, kMaxCopyDims> dims{};
  int num_dims = 0;
  i64 run_bytes = 0;

  i64 runs() const;
  i64 bytes() const { return runs() * run_bytes; }
  bool operator==(const CopyShape&) const = default;
};

/// The two addresses at which one copy of a shape begins.
struct CopyPair {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
};

/// Copies of one shape between many places: one launch.
struct CopyBatch {
  CopyShape shape;
  std::vector<CopyPair> pairs;

  i64 bytes() const { return shape.bytes() * static_cast<i64>(pairs.size()); }
};

/// `srcs[move.src]` and `dsts[move.dst]` are where offset 0 of the tensors lies. Moves of no bytes vanish.
/// Gate and up of all experts of a [E, 2F, H] become one batch of one pair; experts in tensors of their own become
/// one batch with a pair for each.
std::vector<CopyBatch> fold_moves(std::span<const Move> moves, std::span<const std::byte* const> srcs,
                                  std::span<std::byte* const> dsts);

/// The widest word, of 16, 8, 4, 2 or 1 bytes, that divides the run, every step and every address.
int copy_word_bytes(const CopyBatch& batch);

}  // namespace glu_ckpt
