/// Names of shards, axes of tensor parallelism, and the keys that Megatron-Bridge permutes.

#include <fmt/format.h>

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/megatron_shards.hpp"

namespace glu_ckpt {
namespace {

i64 multiply_or_fail(i64 a, i64 b) {
  const auto product = checked_mul(a, b);
  if (!product) fail(ErrorCode::BadNumber, {}, "{} times {} is too large", a, b);
  return *product;
}

void check_rank(std::string_view what, i64 rank, i64 size) {
  if (rank < 0 || rank >= size) fail(ErrorCode::BadNumber, {}, "{} {} of {} cannot be", what, rank, size);
}

bool has(std::string_view key, std::string_view part) { return key.find(part) != std::string_view::npos; }

}  // namespace

std::optional<int> tensor_parallel_axis(std::string_view parameter_name, ParallelMode mode) {
  const std::size_t name_end = parameter_name.find_last_not_of("0123456789") + 1;
  const std::string_view name = parameter_name.substr(0, name_end);
  if (name == "weight") return mode == ParallelMode::Row ? 1 : 0;
  if (name == "bias" && mode == ParallelMode::Column) return 0;
  return std::nullopt;
}

std::array<HalfShard, 2> half_split_shards(std::string_view key, i64 tp_rank, i64 tp_size,
                                           bool singleton_local_shards) {
  check_rank("tensor-parallel rank", tp_rank, tp_size);
  if (singleton_local_shards)
    return {HalfShard{fmt::format("{}_w", key), tp_rank, tp_size},
            HalfShard{fmt::format("{}_v", key), tp_rank, tp_size}};
  const i64 count = multiply_or_fail(2, tp_size);
  return {HalfShard{std::string(key), tp_rank, count}, HalfShard{std::string(key), tp_size + tp_rank, count}};
}

ShardedName sharded_name(std::string_view mlp_prefix, std::string_view linear, std::string_view name,
                         const ExpertPlace& place, bool singleton_local_shards) {
  check_rank("expert-parallel rank", place.ep_rank, place.ep_size);
  check_rank("expert", place.local_expert, place.num_experts);
  const i64 all_experts = multiply_or_fail(place.ep_size, place.num_experts);
  const bool unnumbered = name == "_extra_state" && place.local_expert == 0;
  ShardedName result;
  result.global_expert = place.ep_rank * place.num_experts + place.local_expert;
  result.state_key = fmt::format("{}.experts.{}.{}", mlp_prefix, linear, name);
  if (!unnumbered) result.state_key += std::to_string(place.local_expert);
  if (singleton_local_shards) {
    result.sharded_key = fmt::format("{}.experts.experts.{}.{}.{}", mlp_prefix, result.global_expert, linear, name);
  } else {
    result.sharded_key = fmt::format("{}.experts.experts.{}.{}", mlp_prefix, linear, name);
    result.expert_axis_size = all_experts;
  }
  return result;
}

std::optional<BridgeSet> bridge_set(std::string_view key, bool act_fusion_for_dense) {
  if (!has(key, "linear_fc1.weight") && !has(key, "linear_fc1.bias")) return std::nullopt;
  if (has(key, "shared_experts")) return BridgeSet::Shared;
  if (has(key, "experts")) return BridgeSet::Routed;
  if (act_fusion_for_dense && has(key, "mlp")) return BridgeSet::Dense;
  return std::nullopt;
}

std::vector<BridgePass> bridge_passes(std::optional<i64> routed, std::optional<i64> shared) {
  using enum BridgeSet;
  if (routed && routed == shared) return {{*routed, {Routed, Dense, Shared}}};
  std::vector<BridgePass> passes;
  if (routed) passes.push_back({*routed, {Routed, Dense}});
  if (shared) passes.push_back({*shared, {Shared}});
  return passes;
}

}  // namespace glu_ckpt
