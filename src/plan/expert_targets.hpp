#pragma once
/// The layout in which each layer's experts are written, decided for all of them together.

#include <string>
#include <vector>

#include "glu_ckpt/plan.hpp"
#include "layout/layout_table.hpp"

namespace glu_ckpt {

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

/// "layer 3 routed experts", for messages.
std::string block_text(const ExpertBlock& block);

/// Decides the targets of `from.blocks`. A layer that `former.forms` has is written as it says, others as `to` does.
/// Layers of a stack share their tensors, with a leading axis that counts them, where all layers of the main stack are
/// alike in `megatron-dist` and the keys beside the experts have such an axis, too, or no layer numbers at all; a
/// layout that is kept keeps its keys. `whole` is the naming that the rest of the model gets, where it gets one, and
/// `former` says what is in front of its keys. Throws the refusals of ErrorCode that experts can cause.
std::vector<BlockTarget> expert_targets(const Inventory& inventory, const Recognition& from, const TargetAnswers& to,
                                        const DenseNaming* whole, const FormerModel& former);

}  // namespace glu_ckpt
