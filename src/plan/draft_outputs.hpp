#pragma once
/// The tensors of an output while make_plan() drafts them: those of the experts, those outside of them, layers that are
/// stacked; then the place of each.

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "arch/dense_table.hpp"
#include "glu_ckpt/plan.hpp"
#include "plan/expert_targets.hpp"

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
  /// It is zero, and made of nothing.
  bool zeros = false;
};

/// The tensors to write while they grow; the moves' dst is left for the caller.
struct DraftOutputs {
  std::vector<DraftOutput> list;
  /// Tensors that several layers share, by name.
  std::unordered_map<std::string, std::size_t> shared;
};

/// Adds those of all blocks, each as its target says. Throws NoSpelling, NotExact.
void add_expert_outputs(const std::vector<ExpertBlock>& blocks, const std::vector<BlockTarget>& targets,
                        const Inventory& inventory, DraftOutputs& outputs);

/// The naming and the options with which the rest of a model is written.
struct DenseTarget {
  const DenseNaming* naming = nullptr;
  /// The text in front of its keys.
  std::string root;
  /// Tensors that repeat others are written where a name here says so; absent: all that the naming has.
  std::optional<std::set<std::string>> copies;
  /// The dtype of what is computed; absent: the source's.
  std::optional<Dtype> computed_dtype;
  /// Tensors that no map knows travel under kUnknownPrefix, rather than being refused.
  bool keep_unknown = false;
  /// The order of gate and up in the FC1s of a dense model.
  Glu glu = {};
};

/// Adds the tensors that the target's naming has, each from its matrices; drops copies. Throws PartMissing where the
/// model lacks one, NoSpelling where one has no place, NotExact.
void add_dense_outputs(const Inventory& inventory, const Recognition& from, const DenseTarget& target,
                       DraftOutputs& outputs, Plan& plan);

/// Writes the FC1s of a dense model, which are among the drafts as they are, in another order under the names that they
/// have. Throws NotDivisible, and NoSpelling beside an optimizer's state.
void reorder_dense(const Inventory& inventory, const Recognition& from, const Glu& glu,
                   std::vector<DraftOutput>& drafts);

/// Joins the drafts of a whole model, "decoder.layers.0.X" to "decoder.layers.47.X", to one tensor "decoder.layers.X"
/// each. `whole` is the naming that the model gets; null where it keeps its own. Throws NoSpelling where no program
/// reads such keys, or the layers are not alike.
void stack_drafts(const Recognition& from, const DenseNaming* whole, std::vector<DraftOutput>& drafts, Plan& plan);

/// Returns the bytes of a shard where the user names none: 5 GB, and of 5 to 80 GB a sixteenth but 1 GB at least, as
/// writes scale with the number of files.
i64 usual_shard_bytes(i64 output_bytes);

/// Fills plan.outputs, moves, first_move, num_shards and bytes.
///
/// Outputs stay in the source's order, and a shard ends where a file of the source ends if the next one would not fit
/// whole: then tensors lie at the same distances from each other as in the source, so that of a shard with one file's
/// tensors every page can be one of the source's, once its data section begins where choose_data_phases() says. Where
/// the inventory is not dense there is no such order, and it is the natural one of names, so that a layer stays
/// together. No shard holds more than `max_shard_bytes`, or usual_shard_bytes() where those are 0, unless it is of one
/// tensor. Within a shard a dtype of a higher rank comes first, as the reference writer has it, so that every tensor is
/// aligned to its elements.
void place_outputs(std::vector<DraftOutput> drafts, i64 max_shard_bytes, const Inventory& inventory, Plan& plan);

/// Returns for each shard the phase at which the most bytes can be shared in runs that are worth it (CloneLimits{}); of
/// several such phases the one at which the most bytes can be shared at all, then the least. Multiples of 8; all 0
/// where the inventory is not dense. `plan.outputs` and the moves are complete; nothing else of the plan is looked at.
std::vector<i64> choose_data_phases(const Inventory& inventory, const Plan& plan);

}  // namespace glu_ckpt
