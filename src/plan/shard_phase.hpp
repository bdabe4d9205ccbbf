#pragma once
/// Chooses where the data sections of output shards begin, so that their pages can be pages of the source.
///
/// A file system shares extents in whole blocks, so a run of bytes can be shared only where it lies at the same offset
/// modulo kDataPhaseBytes in both files. Tensors of a shard follow each other without holes, so all that can be chosen
/// is where the first one begins.

#include <vector>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Returns for each shard the phase at which the most bytes can be shared in runs that are worth it (CloneLimits{}); of
/// several such phases the one at which the most bytes can be shared at all, then the least. Multiples of 8; all 0
/// where the inventory is not dense. `plan.outputs` and the moves are complete; nothing else of the plan is looked at.
std::vector<i64> choose_data_phases(const Inventory& inventory, const Plan& plan);

}  // namespace glu_ckpt
