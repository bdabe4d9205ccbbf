#pragma once
/// The arguments that a trainer saved in a checkpoint, or that lie beside it, and what they say of the order of gate
/// and up.

#include <optional>
#include <string>
#include <string_view>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Looks for Megatron-LM's `args` in the common state (an object of the structure or common.pt) or in a torch file. Of
/// moe_mlp_glu_interleave_size and moe_shared_expert_glu_interleave_size, a number is that K, None is contiguous. What
/// cannot be read is named in `unread`, and the rest counts: nothing of a pickle is run, whatever it names.
RunArguments trained_args(const CheckpointInfo& info);

/// Reads the megatron_args.txt beside the checkpoint as a shell gives its words to a run, but for lines that begin with
/// '#'. There, too, a number of --moe-mlp-glu-interleave-size is that K. An option that comes twice with other values
/// answers nothing, and is named in `unread`, like a file that is no text.
RunArguments listed_args(const CheckpointInfo& info);

/// A megatron_args.txt that asks for blocks of so many rows of gate and up instead of those that it asks for, of routed
/// experts and of the shared one; 0 is no blocks, and what is not given stays.
std::string with_orders(std::string_view text, std::optional<i64> glu_rows, std::optional<i64> shared_rows);

}  // namespace glu_ckpt
