#include <gtest/gtest.h>

#include <limits>

#include "glu_ckpt/megatron_shards.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

/// Megatron-LM's test_expert_parameter_attributes_match_parameter_names, and the row-parallel half of
/// test_expert_parameter_attributes_use_expert_topology.
TEST(TensorParallelAxis, A1WeightsAndBiasesWithAndWithoutNumbers) {
  using enum ParallelMode;
  for (const std::string name : {"weight", "weight0", "weight12", "bias", "bias12"})
    EXPECT_EQ(tensor_parallel_axis(name, Column), 0) << name;
  for (const std::string name : {"weight", "weight12"}) EXPECT_EQ(tensor_parallel_axis(name, Row), 1) << name;
  for (const std::string name : {"bias", "bias12"}) EXPECT_FALSE(tensor_parallel_axis(name, Row)) << name;
  for (const ParallelMode mode : {Column, Row})
    for (const std::string name :
         {"weight_scale", "bias_extra", "weight1_scale", "weights", "my_weight", "12", "", "_extra_state"})
      EXPECT_FALSE(tensor_parallel_axis(name, mode)) << name;
}

TEST(HalfSplitShards, HalvesOfAllRanksSideBySide) {
  const auto [first, second] = half_split_shards("fc1.weight", 2, 4, false);
  EXPECT_EQ(first.key, "fc1.weight");
  EXPECT_EQ(first.index, 2);
  EXPECT_EQ(first.count, 8);
  EXPECT_EQ(second.key, "fc1.weight");
  EXPECT_EQ(second.index, 6);
  EXPECT_EQ(second.count, 8);
}

TEST(HalfSplitShards, SingletonHalvesHaveKeysOfTheirOwn) {
  const auto [first, second] = half_split_shards("fc1.weight", 2, 4, true);
  EXPECT_EQ(first.key, "fc1.weight_w");
  EXPECT_EQ(second.key, "fc1.weight_v");
  for (const HalfShard& half : {first, second}) {
    EXPECT_EQ(half.index, 2);
    EXPECT_EQ(half.count, 4);
  }
}

/// Every row shard is written once, gates before ups.
TEST(HalfSplitShards, TileTheWholeTensor) {
  for (const i64 tp : {1, 2, 8}) {
    std::vector<int> written(static_cast<std::size_t>(2 * tp));
    for (i64 rank = 0; rank < tp; ++rank) {
      const auto halves = half_split_shards("k", rank, tp, false);
      EXPECT_LT(halves[0].index, tp);
      EXPECT_GE(halves[1].index, tp);
      for (const HalfShard& half : halves) ++written[static_cast<std::size_t>(half.index)];
    }
    EXPECT_EQ(written, std::vector<int>(static_cast<std::size_t>(2 * tp), 1));
  }
}

TEST(HalfSplitShards, RefusesRanksThatCannotBe) {
  for (const auto& [rank, size] : {std::pair<i64, i64>{2, 2}, {-1, 2}, {0, 0}})
    expect_error(ErrorCode::BadNumber, [rank = rank, size = size] { half_split_shards("k", rank, size, false); });
  constexpr i64 kMost = std::numeric_limits<i64>::max();
  expect_error(ErrorCode::BadNumber, [] { half_split_shards("k", 0, kMost, false); });
}

TEST(ShardedNames, ExpertsShareAKeyAndAnAxis) {
  const ShardedName name = sharded_name("decoder.layers.0.mlp", "linear_fc1", "weight", {2, 4, 8, 3}, false);
  EXPECT_EQ(name.state_key, "decoder.layers.0.mlp.experts.linear_fc1.weight3");
  EXPECT_EQ(name.sharded_key, "decoder.layers.0.mlp.experts.experts.linear_fc1.weight");
  EXPECT_EQ(name.global_expert, 19);
  EXPECT_EQ(name.expert_axis_size, 32);
}

TEST(ShardedNames, SingletonExpertsHaveKeysOfTheirOwn) {
  const ShardedName name = sharded_name("decoder.layers.0.mlp", "linear_fc2", "bias", {2, 4, 8, 3}, true);
  EXPECT_EQ(name.state_key, "decoder.layers.0.mlp.experts.linear_fc2.bias3");
  EXPECT_EQ(name.sharded_key, "decoder.layers.0.mlp.experts.experts.19.linear_fc2.bias");
  EXPECT_EQ(name.global_expert, 19);
  EXPECT_FALSE(name.expert_axis_size);
}

TEST(ShardedNames, ExtraStateOfExpertZeroHasNoNumber) {
  const auto state_key = [](i64 expert) {
    return sharded_name("m", "linear_fc1", "_extra_state", {0, 1, 2, expert}, false).state_key;
  };
  EXPECT_EQ(state_key(0), "m.experts.linear_fc1._extra_state");
  EXPECT_EQ(state_key(1), "m.experts.linear_fc1._extra_state1");
  EXPECT_EQ(sharded_name("m", "linear_fc1", "weight", {0, 1, 2, 0}, false).state_key, "m.experts.linear_fc1.weight0");
}

TEST(ShardedNames, RefusesExpertsThatCannotBe) {
  for (const ExpertPlace& place :
       {ExpertPlace{4, 4, 8, 0}, {-1, 4, 8, 0}, {0, 4, 8, 8}, {0, 4, 8, -1}, {0, i64{1} << 40, i64{1} << 40, 0}})
    expect_error(ErrorCode::BadNumber, [&place] { sharded_name("m", "linear_fc1", "weight", place, false); });
}

TEST(BridgeSets, GoBySubstrings) {
  using enum BridgeSet;
  struct Case {
    std::string key;
    std::optional<BridgeSet> set;
    std::optional<BridgeSet> set_with_dense;
  };
  for (const Case& item :
       std::vector<Case>{{"decoder.layers.0.mlp.experts.linear_fc1.weight7", Routed, Routed},
                         {"decoder.layers.0.mlp.experts.linear_fc1.bias3", Routed, Routed},
                         {"decoder.layers.0.mlp.experts.experts.linear_fc1.weight", Routed, Routed},
                         {"decoder.layers.0.mlp.shared_experts.linear_fc1.weight", Shared, Shared},
                         {"decoder.layers.0.mlp.shared_experts.linear_fc1.bias", Shared, Shared},
                         {"decoder.layers.0.mlp.linear_fc1.weight", {}, Dense},
                         {"decoder.layers.0.mlp.linear_fc1.bias", {}, Dense},
                         {"decoder.layers.0.ffn.linear_fc1.weight", {}, {}},
                         {"decoder.layers.0.mlp.experts.linear_fc2.weight7", {}, {}},
                         {"decoder.layers.0.mlp.experts.linear_fc1._extra_state", {}, {}},
                         {"decoder.layers.0.mlp.experts.linear_fc1.weight_quantizer._amax", Routed, Routed},
                         {"decoder.layers.0.mlp.router.weight", {}, {}}}) {
    EXPECT_EQ(bridge_set(item.key, false), item.set) << item.key;
    EXPECT_EQ(bridge_set(item.key, true), item.set_with_dense) << item.key;
  }
}

TEST(BridgePasses, OneForEachSizeOfBlock) {
  using enum BridgeSet;
  using Passes = std::vector<BridgePass>;
  EXPECT_EQ(bridge_passes({}, {}), Passes{});
  EXPECT_EQ(bridge_passes(32, {}), (Passes{{32, {Routed, Dense}}}));
  EXPECT_EQ(bridge_passes({}, 16), (Passes{{16, {Shared}}}));
  EXPECT_EQ(bridge_passes(32, 32), (Passes{{32, {Routed, Dense, Shared}}}));
  EXPECT_EQ(bridge_passes(32, 16), (Passes{{32, {Routed, Dense}}, {16, {Shared}}}));
}

}  // namespace
}  // namespace glu_ckpt
