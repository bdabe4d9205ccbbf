#pragma once
/// One layer's experts in the layout asked for: the tensors to write and where each matrix goes.

#include <string>
#include <unordered_map>
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
  /// The source's tensor whose place in the order it has: of a layer's experts the first that lies in the same file, so
  /// that they stay together.
  std::size_t origin = 0;
  /// The computation in place of moves.
  std::optional<Compute> compute = std::nullopt;
  /// Its moves read what others read, too.
  bool repeats = false;
};

/// The layout in which a block is written.
struct BlockTarget {
  const Naming* naming = nullptr;
  /// Text of the keys up to the expert part.
  std::string key_prefix;
  /// Layers that share the block's tensors along a leading axis, or 0, and the index of this one on it.
  i64 stacked_layers = 0;
  i64 layer_slot = 0;
  Axes axes = Axes::OutIn;
  Experts experts = Experts::Indexed;
  Experts bias_experts = Experts::Indexed;
  Glu glu;
  /// Gate and up as the halves of an interleaved FC1.
  bool halved = false;
  /// The word of scales of blocks in keys of linear layers, where the source's stays; else empty.
  std::string scale_word;
};

/// Decides all but the key prefix and whether layers share tensors. A layer that `forms` has is written as it says,
/// others as `to` does. Throws the refusals of ErrorCode that a single block can cause.
BlockTarget make_target(const ExpertBlock& block, const Recognition& from, const TargetAnswers& to,
                        const ExpertForms& forms);

/// Decides the key prefix, once naming and stacked_layers are settled. `whole` is the naming that the rest of the model
/// gets, where it gets one, and `former` says what stands in front of its keys. Throws NoSpelling.
void set_key_prefix(const ExpertBlock& block, const Recognition& from, const DenseNaming* whole,
                    const FormerModel& former, BlockTarget& target);

/// The tensors to write while they grow block by block; the moves' dst is left for the caller.
struct DraftOutputs {
  std::vector<DraftOutput> list;
  /// Tensors that several layers share, by name.
  std::unordered_map<std::string, std::size_t> shared;
};

void add_block_outputs(const ExpertBlock& block, const BlockTarget& target, const Inventory& inventory,
                       DraftOutputs& outputs);

}  // namespace glu_ckpt
