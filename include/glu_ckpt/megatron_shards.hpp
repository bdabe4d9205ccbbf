#pragma once
/// Follows what Megatron's distributed checkpoints, its optimizer and Megatron-Bridge make of the tensors of a grouped
/// linear module: names of shards, which axis tensor parallelism cuts, which keys are permuted.
///
/// Sources, at NVIDIA/Megatron-LM d98e8a6 and NVIDIA-NeMo/Megatron-Bridge 067f987:
///   [te_ext]  megatron/core/extensions/transformer_engine.py
///   [mlp]     megatron/core/transformer/mlp.py
///   [experts] megatron/core/transformer/moe/experts.py
///   [distopt] megatron/core/optimizer/distrib_optimizer.py
///   [fp8]     megatron/core/fp8_utils.py
///   [bridge]  src/megatron/bridge/training/checkpointing.py

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/megatron.hpp"

namespace glu_ckpt {

// ---- the optimizer's view of a parameter ----------------------------------------------------------

/// Returns whether the optimizer treats a parameter as quantized: a GroupedTensor with uint8 rowwise storage. A
/// quantizer alone does not make it one. [fp8 is_grouped_tensor_with_quantized_storage]
bool is_grouped_quantized(const StateTensor& tensor);

/// The part of a flat shard of master weights that one tensor gets; both are absent where they do not overlap.
struct MemberShard {
  /// Elements of the shard, from its first one.
  std::optional<i64> shard_begin;
  i64 numel = 0;
  /// Their start, counted from the first element of the member.
  std::optional<i64> start;
  bool operator==(const MemberShard&) const = default;
};

/// A shard of `shard_numel` elements (absent: none) that starts at flat element `start` (absent: 0) of
/// members laid end to end: one result per member, in order. [distopt
/// _expand_quantized_param_shard_for_cast]
std::vector<MemberShard> expand_member_shards(std::span<const i64> member_numels, std::optional<i64> shard_numel,
                                              std::optional<i64> start);
/// Does the same for a parameter; one that is not grouped and quantized passes through, shard and start as given.
std::vector<MemberShard> expand_param_shard(const StateTensor& param, std::optional<i64> shard_numel,
                                            std::optional<i64> start);

/// Keys of optimizer state beside the model's own: `optimizer.state.<state>.<model key>`.
struct OptimizerKey {
  /// "param" or "fp32_param" (master weight), "exp_avg", "exp_avg_sq", or another.
  std::string_view state;
  std::string_view model_key;
};
/// Absent where the key is no such key. The parts point into `key`.
std::optional<OptimizerKey> parse_optimizer_key(std::string_view key);
/// Returns whether a state is the fp32 master weight: `param` in `fully_reshardable`, `fp32_param` in
/// `fully_sharded_model_space`.
bool is_master_weight(std::string_view state);

// ---- tensor parallelism ---------------------------------------------------------------------------

enum class ParallelMode { Column, Row };

/// The axis that tensor parallelism cuts of a module's own parameter: `weight` and `bias`, alone or with
/// digits after them, and nothing else (`weight_scale`). The bias of a row-parallel module is replicated. For one
/// expert's matrix: a grouped tensor has its expert axis before it. [te_ext _set_expert_parameter_attributes]
std::optional<int> tensor_parallel_axis(std::string_view parameter_name, ParallelMode mode);

/// One half of a GLU FC1 in a distributed checkpoint.
struct HalfShard {
  std::string key;
  /// Row shard `index` of `count`.
  i64 index = 0;
  i64 count = 1;
};

/// The first and the second half of rank `tp_rank`'s rows: row shards r and tp + r of 2 * tp under one
/// key, or shard r of tp under `<key>_w` and `<key>_v` with `singleton_local_shards`. The halving goes by position,
/// whatever the order of the rows. [mlp apply_swiglu_sharded_factory]
std::array<HalfShard, 2> half_split_shards(std::string_view key, i64 tp_rank, i64 tp_size, bool singleton_local_shards);

// ---- sharded names --------------------------------------------------------------------------------

/// An expert among those of all expert-parallel ranks.
struct ExpertPlace {
  i64 ep_rank = 0;
  i64 ep_size = 1;
  /// Experts of one rank.
  i64 num_experts = 1;
  /// Index on that rank.
  i64 local_expert = 0;
};

/// One tensor of one expert in Megatron's sharded state dict, which is indexed whatever the form in
/// memory. [te_ext _sharded_state_dict_grouped; experts TEGroupedMLP.sharded_state_dict]
struct ShardedName {
  /// The key in the state dict of the rank: "<mlp>.experts.linear_fc1.weight3".
  std::string state_key;
  /// The key in the checkpoint: "<mlp>.experts.experts.linear_fc1.weight", with an expert axis; or
  /// "<mlp>.experts.experts.7.linear_fc1.weight", without one, with `singleton_local_shards`.
  std::string sharded_key;
  i64 global_expert = 0;
  /// Size of the expert axis that is put before the tensor's own; absent without one.
  std::optional<i64> expert_axis_size;
};

/// `mlp_prefix` is "decoder.layers.0.mlp", `linear` "linear_fc1" or "linear_fc2", `name` "weight", "bias" or
/// "_extra_state" (whose state key has no number for expert 0).
ShardedName sharded_name(std::string_view mlp_prefix, std::string_view linear, std::string_view name,
                         const ExpertPlace& place, bool singleton_local_shards);

// ---- what Megatron-Bridge permutes ----------------------------------------------------------------

enum class BridgeSet { Routed, Shared, Dense };

/// The set a key belongs to, by substrings as upstream tests them, so `linear_fc1.weight_quantizer._amax`
/// is one, too. Dense counts only with USE_ACT_FUSION_FOR_DENSE=1. [bridge _is_swiglu_fc1_checkpoint_key]
std::optional<BridgeSet> bridge_set(std::string_view key, bool act_fusion_for_dense);

/// One walk over the model's keys with one block size.
struct BridgePass {
  i64 block_rows = 0;
  std::vector<BridgeSet> sets;
  bool operator==(const BridgePass&) const = default;
};

/// The passes for `moe_mlp_glu_interleave_size` and `moe_shared_expert_glu_interleave_size`. Dense
/// layers go with the routed experts. Optimizer state is in none. [bridge
/// _process_state_dict_for_model_glu_interleaving]
std::vector<BridgePass> bridge_passes(std::optional<i64> routed, std::optional<i64> shared);

}  // namespace glu_ckpt
