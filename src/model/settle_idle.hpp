#pragma once
/// Which tensors that are idle if they are zero are so.

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Reads the tensors that Recognition::idle has on that condition; those with another element leave it. They are small.
void settle_idle(Checkpoint& checkpoint);

/// Does the same for an output before it can be read: it has these tensors as `source` has them, or they are among its
/// tensors that are `zeros`.
void settle_idle_like(const Checkpoint& source, const std::vector<std::size_t>& zeros, const Inventory& inventory,
                      Recognition& recognition);

}  // namespace glu_ckpt
