#include "layout/layout_table.hpp"

#include <gtest/gtest.h>

#include "support/position_model.hpp"

namespace glu_ckpt {
namespace {

using support::naming_row;

/// Facts about families that a wrong row would turn into wrong weights.
TEST(LayoutTable, WhatFamiliesStoreUnderFusedKeys) {
  EXPECT_EQ(fixed_glu(naming_row("megatron")).kind, Glu::Kind::Unknown);
  EXPECT_EQ(fixed_glu(naming_row("hf:gpt_oss")), (Glu{Glu::Kind::Interleaved, 1}));
  EXPECT_EQ(fixed_glu(naming_row("hf:openai_privacy_filter")).kind, Glu::Kind::Contiguous);
  EXPECT_EQ(fixed_glu(naming_row("hf:granitemoe")).kind, Glu::Kind::Contiguous);
  for (const Naming& naming : namings()) {
    const bool in_out = naming.name == "hf:gpt_oss" || naming.name == "hf:openai_privacy_filter" ||
                        naming.name == "hf:llama4_text" || naming.name == "hf:aria" || naming.name == "hf:qwen3_vl_moe";
    EXPECT_EQ(naming.axes == Axes::InOut, in_out) << naming.name;
  }
}

TEST(LayoutTable, MixtralCallsUpW3AndDownW2) {
  const Naming& mixtral = naming_row("hf:mixtral");
  EXPECT_EQ(mixtral.indexed.gate, "block_sparse_moe.experts.{E}.w1.{K}");
  EXPECT_EQ(mixtral.indexed.up, "block_sparse_moe.experts.{E}.w3.{K}");
  EXPECT_EQ(mixtral.indexed.down, "block_sparse_moe.experts.{E}.w2.{K}");
}

TEST(LayoutTable, MegatronSpellsItsParameters) {
  const Naming& megatron = naming_row("megatron");
  EXPECT_EQ(megatron.indexed.gate_up, "mlp.experts.linear_fc1.{K}{E}");
  EXPECT_EQ(megatron.grouped.down, "mlp.experts.linear_fc2.{K}");
  EXPECT_EQ(megatron.shared.gate_up, "mlp.shared_experts.linear_fc1.{K}");
  EXPECT_TRUE(megatron.plain_fc1_is_fused);
}

TEST(LayoutTable, Nativeness) {
  const Naming& qwen = naming_row("hf:qwen3_moe");
  EXPECT_TRUE(is_native(qwen, ExpertSet::Routed, Experts::Indexed, false));
  EXPECT_FALSE(is_native(qwen, ExpertSet::Routed, Experts::Indexed, true));
  EXPECT_TRUE(is_native(qwen, ExpertSet::Routed, Experts::Grouped, true));
  EXPECT_TRUE(is_native(naming_row("megatron"), ExpertSet::Shared, Experts::Indexed, true));
  EXPECT_FALSE(is_native(naming_row("hf:deepseek_v3"), ExpertSet::Shared, Experts::Indexed, true));
}

}  // namespace
}  // namespace glu_ckpt
