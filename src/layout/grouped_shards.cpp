/// The optimizer's view of grouped quantized parameters, and the keys of its state.

#include <algorithm>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "glu_ckpt/megatron_shards.hpp"
#include "layout/state_dict.hpp"

namespace glu_ckpt {
namespace {

i64 add_or_fail(i64 a, i64 b) {
  const auto sum = a < 0 || b < 0 ? std::nullopt : checked_add(a, b);
  if (!sum) fail(ErrorCode::BadNumber, {}, "elements {} + {} of a shard cannot be counted", a, b);
  return *sum;
}

}  // namespace

bool is_grouped_quantized(const StateTensor& tensor) {
  return tensor.num_members.has_value() && tensor.storage == Storage::Quantized;
}

std::vector<MemberShard> expand_member_shards(std::span<const i64> member_numels, std::optional<i64> shard_numel,
                                              std::optional<i64> start) {
  const i64 shard_begin = start.value_or(0);
  const i64 shard_end = add_or_fail(shard_begin, shard_numel.value_or(0));
  std::vector<MemberShard> shards;
  i64 member_begin = 0;
  for (const i64 numel : member_numels) {
    const i64 member_end = add_or_fail(member_begin, numel);
    const i64 begin = std::max(member_begin, shard_begin);
    const i64 end = std::min(member_end, shard_end);
    if (begin < end)
      shards.push_back({begin - shard_begin, end - begin, begin - member_begin});
    else
      shards.push_back({});
    member_begin = member_end;
  }
  return shards;
}

std::vector<MemberShard> expand_param_shard(const StateTensor& param, std::optional<i64> shard_numel,
                                            std::optional<i64> start) {
  if (!is_grouped_quantized(param)) {
    MemberShard whole;
    if (shard_numel) whole = {0, *shard_numel, {}};
    whole.start = start;
    return {whole};
  }
  std::vector<i64> numels;
  for (const StateTensor& member : grouped_members(param, {})) numels.push_back(element_count(member, {}));
  return expand_member_shards(numels, shard_numel, start);
}

std::optional<OptimizerKey> parse_optimizer_key(std::string_view key) {
  constexpr std::string_view kPrefix = "optimizer.state.";
  if (!key.starts_with(kPrefix)) return std::nullopt;
  key.remove_prefix(kPrefix.size());
  const std::size_t dot = key.find('.');
  if (dot == 0 || dot == std::string_view::npos || dot + 1 == key.size()) return std::nullopt;
  return OptimizerKey{key.substr(0, dot), key.substr(dot + 1)};
}

bool is_master_weight(std::string_view state) { return state == "param" || state == "fp32_param"; }

}  // namespace glu_ckpt
