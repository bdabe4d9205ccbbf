#pragma once
/// Which tensors that are idle if they are zero are so.

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Reads the tensors that Recognition::idle has on that condition; those with another element leave it. They are small.
void settle_idle(Checkpoint& checkpoint);

/// Does the same for an output that has these tensors as `source` has them, before it can be read.
void settle_idle_like(const Checkpoint& source, const Inventory& inventory, Recognition& recognition);

}  // namespace glu_ckpt
