#pragma once
/// What the arguments that a trainer saved in a checkpoint say of the order of gate and up.

#include <string>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Each as `--from-glu` would say it; empty where no arguments are there, or none of that name.
struct TrainedOrders {
  std::string glu;
  std::string shared_glu;
};

/// Looks for Megatron-LM's moe_mlp_glu_interleave_size and moe_shared_expert_glu_interleave_size, in `args` of the
/// common state (an object of the structure or common.pt) or of a torch file: a number is that K, None is contiguous.
/// What cannot be read answers nothing.
TrainedOrders trained_orders(const CheckpointInfo& info);

}  // namespace glu_ckpt
