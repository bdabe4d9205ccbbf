#pragma once
/// One layer's experts from the keys that a naming matched: completeness, shapes, matrices.

#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "layout/key_pattern.hpp"

namespace glu_ckpt {

/// The tensors of one part of a block, e.g. all `gate_proj.weight`: (expert, tensor index).
using PartTensors = std::vector<std::pair<i64, std::size_t>>;

/// All parts of a block, by how they are stored.
using BlockParts = std::map<std::tuple<TensorKind, Experts, Role>, PartTensors>;

/// The facts about a block that its own tensors do not show.
struct BlockContext {
  const Inventory* inventory = nullptr;
  const Naming* naming = nullptr;
  /// The block is a shard's: the router knows all experts, the shard holds its share of them.
  bool shard = false;
  /// E and H as the router's shape says; for flat grouped tensors.
  std::optional<std::pair<i64, i64>> router_shape;
  /// E as config.json says, for blocks that it speaks about.
  std::optional<i64> num_experts;
  /// F of the routed experts as config.json says, for blocks that it speaks about.
  std::optional<i64> expert_width = std::nullopt;
  /// Rows of the blocks that FP8 weights have scales for.
  i64 scale_rows = 128;
};

/// A block whose parts are complete and of matching shapes.
struct BlockShape {
  ExpertBlock block;
  BlockParts parts;
  /// The weights in an element of the codes of each role.
  std::map<Role, ElementGrid> codes;
  /// BlockContext's.
  i64 scale_rows = 128;
  /// F of each expert.
  std::vector<i64> intermediate;
};
/// Fills everything of `block` but `glu` of fused FC1s and the matrices. Throws the expert errors.
BlockShape check_block(ExpertBlock block, BlockParts parts, const BlockContext& context);

/// The shape of one layer's part of a tensor: without the leading axis of layers, if the block has one.
std::span<const i64> layer_shape(const ExpertBlock& block, const TensorRef& ref);

/// Adds the matrices once `block.glu` is settled. Throws NotDivisible.
void add_matrices(BlockShape& shape, const Inventory& inventory);

/// Gate rows per block of a fused FC1's tensor of this grid: K, or F when contiguous; for scales in rows
/// of scales. Throws NotDivisible where F is not a multiple of K, NotExact where a block of weights
/// would share scales with its neighbour.
i64 fused_block_rows(const Glu& glu, i64 intermediate, const ElementGrid& grid, const std::string& name);

/// Returns whether FC1 and FC2 together have the shapes of this orientation. With E, F, H > 0 it is never true of
/// both: [2F, H] with [H, F] against [H, 2F] with [F, H] would need H = F and H = 2F.
bool axes_fit(const BlockParts& parts, const Inventory& inventory, Axes axes);

/// Returns whether a block is of another model beside the language model, such as one that talks.
bool is_of_other_model(const ExpertBlock& block);

}  // namespace glu_ckpt
