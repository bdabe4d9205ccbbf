/// Tests named Q1..Q6 are the cases of Megatron-LM's
/// tests/unit_tests/optimizer/test_distrib_optimizer_grouped_quantized.py.

#include <gtest/gtest.h>

#include <limits>

#include "glu_ckpt/megatron_shards.hpp"
#include "support/convert.hpp"
#include "support/state_dicts.hpp"

namespace glu_ckpt {
namespace {

using namespace support;
using Shards = std::vector<MemberShard>;

const MemberShard kNothing{};
constexpr i64 kMost = std::numeric_limits<i64>::max();

/// Quantized members of these sizes; split off already, as their sizes differ.
StateTensor quantized(const std::vector<i64>& numels) {
  StateTensor tensor = grouped_object({static_cast<i64>(numels.size()), 1}, true);
  tensor.cached_members.emplace();
  for (const i64 numel : numels) tensor.cached_members->push_back(state_tensor({numel}));
  return tensor;
}

TEST(GroupedShards, Q1AShardIsCutAtTheMembers) {
  EXPECT_EQ(expand_param_shard(quantized({3, 5, 2}), 6, 2), (Shards{{0, 1, 2}, {1, 5, 0}, kNothing}));
}

TEST(GroupedShards, Q2APlainParameterPassesThrough) {
  EXPECT_EQ(expand_param_shard(state_tensor({4}), 4, 1), (Shards{{0, 4, 1}}));
  EXPECT_EQ(expand_param_shard(state_tensor({4}), {}, {}), (Shards{kNothing}));
  EXPECT_EQ(expand_param_shard(state_tensor({4}), 4, {}), (Shards{{0, 4, {}}}));
  EXPECT_EQ(expand_param_shard(grouped_object({2, 2}, false), 4, 0), (Shards{{0, 4, 0}}));
}

TEST(GroupedShards, Q3UintStorageIsQuantizedWithoutCachedMembers) {
  const StateTensor tensor = grouped_object({1, 1}, true);
  EXPECT_FALSE(tensor.cached_members);
  EXPECT_TRUE(is_grouped_quantized(tensor));
}

TEST(GroupedShards, Q4OtherStorageIsNotQuantized) {
  EXPECT_FALSE(is_grouped_quantized(grouped_object({1, 1}, false)));
  EXPECT_FALSE(is_grouped_quantized(state_tensor({1, 1})));
  StateTensor no_object = grouped_object({1, 1}, true);
  no_object.num_members.reset();
  EXPECT_FALSE(is_grouped_quantized(no_object));
}

TEST(GroupedShards, Q5MembersAreSplitOffWhenNeeded) {
  EXPECT_EQ(expand_param_shard(grouped_object({2, 2}, true), 4, 0), (Shards{{0, 2, 0}, {2, 2, 0}}));
}

TEST(GroupedShards, Q6WithoutAShardEveryMemberGetsNothing) {
  EXPECT_EQ(expand_param_shard(quantized({3, 2}), {}, {}), (Shards{kNothing, kNothing}));
}

TEST(GroupedShards, StartDefaultsToZeroAndLengthToNothing) {
  const std::vector<i64> numels{3, 2};
  EXPECT_EQ(expand_member_shards(numels, 4, {}), (Shards{{0, 3, 0}, {3, 1, 0}}));
  EXPECT_EQ(expand_member_shards(numels, {}, 1), (Shards{kNothing, kNothing}));
  EXPECT_EQ(expand_member_shards(numels, 0, 1), (Shards{kNothing, kNothing}));
}

TEST(GroupedShards, EdgesOfMembersTouchAndDoNotOverlap) {
  const std::vector<i64> numels{2, 0, 2, 2};
  EXPECT_EQ(expand_member_shards(numels, 2, 2), (Shards{kNothing, kNothing, {0, 2, 0}, kNothing}));
  EXPECT_EQ(expand_member_shards(numels, 1, 5), (Shards{kNothing, kNothing, kNothing, {0, 1, 1}}));
  EXPECT_EQ(expand_member_shards(numels, 3, 6), (Shards{kNothing, kNothing, kNothing, kNothing}));
}

TEST(GroupedShards, RefusesImpossibleNumbers) {
  const std::vector<i64> numels{3, -1};
  expect_error(ErrorCode::BadNumber, [&] { expand_member_shards(numels, 1, 0); });
  expect_error(ErrorCode::BadNumber, [] { expand_member_shards({}, -1, 0); });
  expect_error(ErrorCode::BadNumber, [] { expand_member_shards({}, 1, -1); });
  expect_error(ErrorCode::BadNumber, [] { expand_member_shards({}, kMost, 1); });
  const std::vector<i64> large{kMost, 1};
  expect_error(ErrorCode::BadNumber, [&] { expand_member_shards(large, 1, 0); });
}

TEST(OptimizerStateKeys, NameTheStateAndTheModelsKey) {
  const auto key =
      parse_optimizer_key("optimizer.state.exp_avg_sq.decoder.layers.mlp.experts.experts.linear_fc1.weight");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->state, "exp_avg_sq");
  EXPECT_EQ(key->model_key, "decoder.layers.mlp.experts.experts.linear_fc1.weight");
  for (const std::string other : {"optimizer.state.exp_avg", "optimizer.state..a", "optimizer.state.exp_avg.",
                                  "decoder.optimizer.state.exp_avg.a", "optimizer.states.exp_avg.a", "",
                                  "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_0.exp_avg"})
    EXPECT_FALSE(parse_optimizer_key(other)) << other;
}

TEST(OptimizerStateKeys, TheMasterWeightHasTwoSpellings) {
  EXPECT_TRUE(is_master_weight("param"));
  EXPECT_TRUE(is_master_weight("fp32_param"));
  for (const std::string other : {"exp_avg", "exp_avg_sq", "step", "params", ""}) EXPECT_FALSE(is_master_weight(other));
}

}  // namespace
}  // namespace glu_ckpt
