#pragma once
/// Keys of an optimizer's tensors, and the parts of them that are keys of the model.

#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// One way to read a key of an optimizer's state: `before`, a key of the model, `after`.
///   optimizer.state.exp_avg.<model key>     Megatron
///   optimizer.state.<model key>.exp_avg     torch FSDP, Megatron-FSDP
struct StateKey {
  /// The text in front of "optimizer.state.".
  std::string_view scope;
  std::string_view before;
  std::string_view model_key;
  std::string_view after;
  std::string_view state;
};

/// Returns all readings of `name`; none where it is no key of an optimizer's state.
std::vector<StateKey> read_state_key(std::string_view name);

/// Returns whether it is a flat bucket of the distributed optimizer: parameters end to end, without their names.
bool is_bucket_key(std::string_view name);

/// Returns whether the key of an optimizer's tensor names no parameter: torch.optim counts them, as in
/// "optimizer.state.7.exp_avg" or "optimizer.fp32_from_fp16_params.0.7".
bool is_unnamed_state_key(std::string_view name);

/// Returns whether a state of that name holds the weights themselves, unrounded: Megatron calls them `param`, or
/// `fp32_param` in `fully_sharded_model_space`.
bool is_master_weight(std::string_view state);

/// "mp_rank_00_003/" in front of keys of one shard of Megatron's legacy format; empty where there is none.
std::string_view shard_folder(std::string_view name);

/// Says of a checkpoint with such keys that it is not whole before Megatron-LM has joined its ranks; empty for others.
std::string unjoined_ranks_text(const Inventory& inventory);

}  // namespace glu_ckpt
