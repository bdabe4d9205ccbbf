#include "layout/optimizer_names.hpp"

#include <gtest/gtest.h>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {
namespace {

TEST(OptimizerNames, BothGrammars) {
  const auto megatron = read_state_key("chained_0.optimizer.state.exp_avg.decoder.layers.0.x.weight0");
  ASSERT_EQ(megatron.size(), 2u);
  EXPECT_EQ(megatron[0].scope, "chained_0.");
  EXPECT_EQ(megatron[0].before, "chained_0.optimizer.state.exp_avg.");
  EXPECT_EQ(megatron[0].model_key, "decoder.layers.0.x.weight0");
  EXPECT_EQ(megatron[0].after, "");
  EXPECT_EQ(megatron[0].state, "exp_avg");
  const auto fsdp = read_state_key("mp_rank_00/optimizer.state.module.decoder.weight3_w.exp_avg_sq");
  ASSERT_EQ(fsdp.size(), 2u);
  EXPECT_EQ(fsdp[1].scope, "mp_rank_00/");
  EXPECT_EQ(fsdp[1].before, "mp_rank_00/optimizer.state.");
  EXPECT_EQ(fsdp[1].model_key, "module.decoder.weight3_w");
  EXPECT_EQ(fsdp[1].after, ".exp_avg_sq");
  EXPECT_EQ(fsdp[1].state, "exp_avg_sq");
}

TEST(OptimizerNames, NoStateOfTheWeightsName) {
  for (const char* name : {"optimizer.state.", "optimizer.state.x", "xoptimizer.state.a.b",
                           "optimizer.param_groups.a.b", "decoder.layers.0.weight", ""})
    EXPECT_TRUE(read_state_key(name).empty()) << name;
  // A state that called itself the model would pass for the weight.
  for (const StateKey& key : read_state_key("optimizer.state.model.layers.0.weight")) EXPECT_NE(key.state, "model");
}

TEST(OptimizerNames, Buckets) {
  for (const char* name :
       {"chained_1.optimizer.distributed.dp_group_idx_3.gbuf_idx_0.dtype_(torch.bfloat16, "
        "torch.bfloat16).bucket_idx_0.exp_avg",
        "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.x", "0.(torch.bfloat16, torch.float32).param",
        "mp_rank_00/1.(torch.float32, torch.float32).exp_avg_sq"})
    EXPECT_TRUE(is_bucket_key(name)) << name;
  for (const char* name : {"optimizer.state.exp_avg.decoder.weight", "bucket_idx_", "my_bucket_idx_0.param",
                           "bucket_idx_x", "decoder.layers.0.mlp.router.weight"})
    EXPECT_FALSE(is_bucket_key(name)) << name;
}

TEST(OptimizerNames, ParametersByNumber) {
  for (const char* name : {"optimizer.state.7.exp_avg", "mp_rank_00/optimizer.optimizer.state.12.exp_avg_sq",
                           "optimizer.fp32_from_fp16_params.0.7", "optimizer.state.exp_avg.3"})
    EXPECT_TRUE(is_unnamed_state_key(name)) << name;
  for (const char* name : {"optimizer.state.exp_avg.decoder.layers.0.w", "optimizer.state.scale.exp_avg",
                           "decoder.layers.0.mlp.experts.linear_fc1.weight0", "state.7.exp_avg"})
    EXPECT_FALSE(is_unnamed_state_key(name)) << name;
}

TEST(OptimizerNames, WhatDropLeavesOut) {
  for (const char* name : {"optimizer.state.exp_avg.w", "chained_12.optimizer.param_groups.0.lr", "optim.state.w.step",
                           "mp_rank_00_003/optimizer.x", "mp_rank_00/chained_0.optimizer_state_dict.x",
                           "0.(torch.bfloat16, torch.float32).param", "model.optimizer.state.w.exp_avg"})
    EXPECT_TRUE(is_optimizer_tensor(name)) << name;
  for (const char* name : {"optimizers.w", "model.optimizer.weight", "decoder.optim.w", "mp_rank_00/decoder.w",
                           "chained_.optimizer.w", "optimizer"})
    EXPECT_FALSE(is_optimizer_tensor(name)) << name;
}

TEST(OptimizerNames, ShardFolders) {
  EXPECT_EQ(shard_folder("mp_rank_00_003_001/decoder.x"), "mp_rank_00_003_001/");
  EXPECT_EQ(shard_folder("mp_rank_00"), "");
  EXPECT_EQ(shard_folder("decoder.mp_rank_00/x"), "");
}

TEST(OptimizerNames, TheMasterWeightHasTwoSpellings) {
  EXPECT_TRUE(is_master_weight("param"));
  EXPECT_TRUE(is_master_weight("fp32_param"));
  EXPECT_FALSE(is_master_weight("exp_avg"));
}

}  // namespace
}  // namespace glu_ckpt
