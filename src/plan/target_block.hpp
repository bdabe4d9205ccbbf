#pragma once
/// One layer's experts in the layout asked for: the tensors to write and where each matrix goes.

#include <string>
#include <vector>

#include "glu_ckpt/plan.hpp"
#include "layout/layout_table.hpp"

namespace glu_ckpt {

/// A tensor to write, before its shard is known.
struct DraftOutput {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<i64> shape;
  i64 bytes = 0;
  std::vector<Move> moves;
};

/// How a block is to be written.
struct BlockTarget {
  const Naming* naming = nullptr;
  /// Text of the keys up to the expert part.
  std::string key_prefix;
  Axes axes = Axes::OutIn;
  Experts experts = Experts::Indexed;
  Experts bias_experts = Experts::Indexed;
  Glu glu;
};

/// Throws the refusals of ErrorCode that a single block can cause.
BlockTarget make_target(const ExpertBlock& block, const Recognition& from, const TargetAnswers& to);

/// Appends the block's tensors to `outputs`; the moves' dst is left for the caller.
void add_block_outputs(const ExpertBlock& block, const BlockTarget& target, const Inventory& inventory,
                       std::vector<DraftOutput>& outputs);

}  // namespace glu_ckpt
