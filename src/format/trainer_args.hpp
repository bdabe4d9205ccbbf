#pragma once
/// The arguments that a trainer saved in a checkpoint, and what they say of the order of gate and up.

#include <string>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

struct TrainedArgs {
  /// Each as `--from-glu` would say it; empty where no arguments are there, or none of that name.
  std::string glu;
  std::string shared_glu;
  /// All of them as ModelHints::trained_args; empty where none are there.
  std::string json;
  /// Those that are no number, text, flag, None, or list or dictionary of such.
  std::vector<UnreadArg> unread;
};

/// Looks for Megatron-LM's `args` in the common state (an object of the structure or common.pt) or in a torch file. Of
/// moe_mlp_glu_interleave_size and moe_shared_expert_glu_interleave_size, a number is that K, None is contiguous. What
/// cannot be read is named in `unread`, and the rest counts: nothing of a pickle is run, whatever it names.
TrainedArgs trained_args(const CheckpointInfo& info);

}  // namespace glu_ckpt
