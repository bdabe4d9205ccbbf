/// Which group of compressed-tensors' configuration a weight is in, by its targets.

#include "quant/group_finder.hpp"

#include <gtest/gtest.h>

#include "support/quantized_tensors.hpp"

namespace glu_ckpt {
namespace {

using support::Cell;
using support::cell;
using support::expect_error;
using support::found;
using support::MemoryTensor;
using support::only;
using support::packed_int4;
using support::says;
using support::stored;
using support::why_undecodable;

std::string groups_of(const std::string& a, const std::string& b) {
  return R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {)" + a +
         R"(}}, "b": {"format": "int-quantized", "weights": {)" + b + "}}}}";
}

/// Codes decode to other numbers where a tensor is left out, so its absence is never taken for its usual value.
TEST(GroupFinder, GroupsOfModulesThatDiffer) {
  const std::string four = R"("num_bits": 4, "type": "int", "group_size": 32, "symmetric": true)";
  EXPECT_EQ(why_undecodable(packed_int4(), groups_of(four, four)), "");
  EXPECT_EQ(why_undecodable(packed_int4(), groups_of(four, R"("num_bits": 8, "type": "int", "symmetric": true)")), "");
  const auto refused = [](const std::string& config) { return why_undecodable(packed_int4(), config); };
  EXPECT_TRUE(says(refused(groups_of(four, R"("num_bits": 4, "symmetric": false)")), "zero points"));
  EXPECT_TRUE(says(refused(groups_of(four, R"("num_bits": 4, "symmetric": true, "actorder": "group")")), "actorder"));
  EXPECT_EQ(refused(groups_of(four, R"("num_bits": 4, "symmetric": true, "actorder": "weight")")), "");
  const std::string mixed = R"({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights":
      {"num_bits": 4, "symmetric": true}}, "b": {"weights": {"num_bits": 8, "symmetric": true}}}})";
  EXPECT_TRUE(says(refused(mixed), "numbers of bits"));
}

/// compressed-tensors looks a module up by its name, then by patterns, then as a linear layer.
TEST(GroupFinder, GroupsByTheirTargets) {
  const QuantConfig config = read_quant_config(R"({"quantization_config": {"quant_method": "compressed-tensors",
      "config_groups": {
      "all": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
      "attention": {"targets": ["re:.*attn.*"], "weights": {"num_bits": 8, "type": "float", "strategy": "block",
                    "block_structure": [128, 128]}},
      "words": {"targets": ["re:.*experts.*", "b.attn.o"], "weights": {"num_bits": 4, "type": "int",
                "group_size": 32, "strategy": "group", "symmetric": false}}}}})");
  ASSERT_EQ(config.groups.size(), 3U);
  EXPECT_EQ(GroupFinder(config).of_weight("b.attn.q", 0)->group, "attention");
  EXPECT_EQ(GroupFinder(config).of_weight("b.attn.o", 0)->group, "words");
  EXPECT_EQ(GroupFinder(config).of_weight("b.mlp.up", 0)->group, "all");
  EXPECT_EQ(GroupFinder(config).of_weight("b.experts.0.attn", 0)->group, "attention");
  EXPECT_EQ(block_rows_of(config), 128);
  const auto fp8 = [](const std::string& name, const std::vector<i64>& scales) {
    return std::vector{stored(name + ".weight", Dtype::F8_E4M3, {192, 160}),
                       stored(name + ".weight_scale", Dtype::F32, scales)};
  };
  EXPECT_EQ(cell(only(fp8("b.attn.q", {2, 2}), config)), Cell(128, 128));
  EXPECT_EQ(cell(only(fp8("b.mlp.up", {192, 1}), config)), Cell(1, 160));
  const std::vector<MemoryTensor> words = {stored("b.experts.0.up.weight_packed", Dtype::I32, {96, 8}),
                                           stored("b.experts.0.up.weight_scale", Dtype::BF16, {96, 2}),
                                           stored("b.experts.0.up.weight_zero_point", Dtype::I32, {12, 2})};
  EXPECT_FALSE(found(words, config).undecodable);
  const auto contradicts = [&](const std::vector<MemoryTensor>& tensors, const std::string& text) {
    expect_error(
        ErrorCode::QuantConfigContradicts, [&] { found(tensors, config); }, text);
  };
  contradicts(fp8("b.mlp.up", {1}),
              "'b.mlp.up.weight_scale': [1] scales for 'b.mlp.up.weight' of [192, 160], but group 'all' of "
              "quantization_config, whose targets mean it (Linear), has one scale for each channel");
  contradicts(
      fp8("b.experts.0.up", {192, 1}),
      "group 'words' of quantization_config, whose targets mean it (re:.*experts.*, b.attn.o), has weights of 4 "
      "bits, type 'int'");
  std::vector<MemoryTensor> named_as_fp8 = words;
  for (MemoryTensor& tensor : named_as_fp8) tensor.name.replace(0, 14, "b.mlp.up");
  contradicts(named_as_fp8, "'b.mlp.up.weight_packed' is I32 [96, 8], but group 'all'");
  expect_error(
      ErrorCode::SizeMismatch,
      [&] {
        found(fp8("b.attn.q", {192, 1}), config);
      },
      "expected [2, 2]");
}

/// As compressed-tensors 0.20 did with these groups: patterns are tried in the order of their letters, whichever group
/// stands first, and a target that two groups have is the last one's.
TEST(GroupFinder, TwoPatternsOfOneModule) {
  const QuantConfig config = read_quant_config(R"({"quantization_config": {"quant_method": "compressed-tensors",
      "config_groups": {
      "z": {"targets": ["re:.*up.*", "Linear"], "weights": {"num_bits": 8, "type": "int"}},
      "a": {"targets": ["re:.*[u]p$", "Linear"], "weights": {"num_bits": 4, "type": "int"}}}}})");
  EXPECT_EQ(GroupFinder(config).of_weight("m.up", 0)->group, "a");
  EXPECT_EQ(GroupFinder(config).of_weight("m.up.x", 0)->group, "z");
  EXPECT_EQ(GroupFinder(config).of_weight("m.down", 0)->group, "a");
}

/// Fused and grouped weights stay in the group of the modules that they were made of, whose names the targets have.
TEST(GroupFinder, GroupsOfMovedExperts) {
  const auto of_blocks = [](const std::string& target) {
    return read_quant_config(R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "all": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "block",
                "block_structure": [128, 128]}},
        "experts": {"targets": [")" +
                             target + R"("], "weights": {"num_bits": 8, "type": "float", "strategy": "block",
                    "block_structure": [96, 128]}}}}})");
  };
  const QuantConfig config = of_blocks(R"(re:.*experts\\.\\d+\\..*)");
  const auto group = [](const QuantConfig& of, const std::string& name, i64 experts) {
    const QuantConfig* const one = GroupFinder(of).of_weight(name, experts);
    return one == nullptr ? std::string() : one->group;
  };
  EXPECT_EQ(group(config, "m.experts.gate_up_proj", 2), "experts");
  EXPECT_EQ(group(config, "m.experts.0.gate_up_proj", 0), "experts");
  EXPECT_EQ(group(config, "m.experts.w13", 2), "experts");
  EXPECT_EQ(group(config, "m.experts.down_proj", 2), "experts");
  EXPECT_EQ(group(config, "m.q_proj", 0), "all");
  EXPECT_EQ(group(config, "m.gate_up_proj", 0), "all");
  // Not known: grouped without an axis of experts, and names of no module.
  EXPECT_EQ(group(config, "m.experts.down_proj", 0), "");
  EXPECT_EQ(group(config, "m.experts.other", 2), "");
  EXPECT_EQ(group(config, "m.stacked", 2), "");
  const QuantConfig gate = of_blocks(R"(re:.*\\.gate_proj$)");
  EXPECT_EQ(group(gate, "m.experts.gate_up_proj", 2), "");
  EXPECT_EQ(group(gate, "m.shared_expert.gate_up_proj", 0), "");
  EXPECT_EQ(group(gate, "m.experts.down_proj", 2), "all");
  EXPECT_EQ(group(of_blocks(R"(re:.*experts\\.1\\..*)"), "m.experts.down_proj", 2), "");
  EXPECT_EQ(group(of_blocks(R"(re:.*gate_up_proj$)"), "m.experts.gate_up_proj", 2), "");

  const std::vector<MemoryTensor> grouped = {stored("m.experts.gate_up_proj", Dtype::F8_E4M3, {2, 192, 128}),
                                             stored("m.experts.gate_up_proj_scale", Dtype::F32, {2, 2, 1})};
  EXPECT_EQ(cell(only(grouped, config)), Cell(96, 128));
  expect_error(
      ErrorCode::QuantConfigContradicts, [&] { found(grouped, gate); },
      "'m.experts.gate_up_proj' is F8_E4M3 [2, 192, 128], and the targets of quantization_config do not tell which "
      "group it is in, by whose blocks its scales are read: group 'all' has 128x128, 'experts' has 96x128");
}

TEST(GroupFinder, TargetsThatAreNotReadSayNothing) {
  const QuantConfig config = read_quant_config(R"({"quantization_config": {"quant_method": "compressed-tensors",
      "config_groups": {
      "a": {"targets": ["re:a{2}"], "weights": {"num_bits": 4, "type": "int", "symmetric": true}},
      "b": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": true}}}}})");
  EXPECT_EQ(GroupFinder(config).of_weight("a", 0), nullptr);
  EXPECT_TRUE(found(packed_int4(), config).undecodable);
}

}  // namespace
}  // namespace glu_ckpt
