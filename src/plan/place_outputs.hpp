#pragma once
/// Decides which output tensor goes to which shard and where in it, and where the data sections of shards begin.

#include <vector>

#include "glu_ckpt/plan.hpp"
#include "plan/expert_outputs.hpp"

namespace glu_ckpt {

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
