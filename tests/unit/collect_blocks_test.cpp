/// Which tensors are an optimizer's states of an expert's, and what else may stand under their keys.

#include <fmt/format.h>

#include <algorithm>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

const Spelling kIndexed{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), contiguous()};
const std::string kState = "optimizer.state.exp_avg.";
const std::string kLayer = "decoder.layers.0.mlp.experts.";

std::vector<MemoryTensor> tensors(bool states = true) {
  ModelSpec model;
  model.blocks.emplace_back();
  model.blocks[0].hidden = 3;
  model.blocks[0].bias = true;
  if (states) add_states(model, {"exp_avg"});
  return build(model, kIndexed);
}

MemoryTensor& named(std::vector<MemoryTensor>& all, const std::string& name) {
  return *std::ranges::find(all, name, &MemoryTensor::name);
}

void resize(MemoryTensor& tensor, std::vector<i64> shape) {
  tensor.shape = std::move(shape);
  tensor.bytes.resize(static_cast<std::size_t>(tensor_bytes(tensor.dtype, tensor.shape)));
}

Recognition recognized(const std::vector<MemoryTensor>& all) {
  return recognize(make_inventory(all), {}, {{"glu", "contiguous"}}, {});
}

std::size_t count_states(const Recognition& found) {
  return static_cast<std::size_t>(std::ranges::count_if(found.blocks, &ExpertBlock::is_optimizer_state));
}

TEST(StateBlock, TakesItsSizesFromTheWeights) {
  std::vector<MemoryTensor> all = tensors();
  std::erase_if(
      all, [](const auto& t) { return t.name.starts_with(kState) && t.name.find("fc1.weight") == std::string::npos; });
  const Recognition found = recognized(all);
  ASSERT_EQ(found.blocks.size(), 2u);
  EXPECT_FALSE(found.blocks[0].is_optimizer_state());
  const ExpertBlock& state = found.blocks[1];
  EXPECT_EQ(state.state, "exp_avg");
  EXPECT_EQ(state.num_experts, 2);
  EXPECT_EQ(state.hidden_size, 3);
  EXPECT_EQ(state.intermediate_size, 4);
  EXPECT_TRUE(state.fused);
  EXPECT_EQ(state.matrices.size(), 4u);
  EXPECT_EQ(state.matrices[0].dtype, Dtype::F64);
  EXPECT_TRUE(found.unexplained.empty());
}

TEST(StateBlock, IncompleteOnes) {
  const auto without = [](const std::string& name) {
    std::vector<MemoryTensor> all = tensors();
    std::erase_if(all, [&](const auto& t) { return t.name == name; });
    return all;
  };
  for (const std::string part : {"linear_fc1.weight0", "linear_fc1.weight1", "linear_fc2.weight1", "linear_fc1.bias0"})
    expect_error(
        ErrorCode::ExpertMissing, [&] { recognized(without(fmt::format("{}{}{}", kState, kLayer, part))); }, "exp_avg");
  std::vector<MemoryTensor> all = tensors();
  all.push_back(named(all, kState + kLayer + "linear_fc1.weight1"));
  all.back().name = kState + kLayer + "linear_fc1.weight2";
  expect_error(
      ErrorCode::ExpertExtra, [&] { recognized(all); }, "expert 2 is one too many");
  all = tensors();
  named(all, kState + kLayer + "linear_fc1.weight1").dtype = Dtype::F32;
  resize(named(all, kState + kLayer + "linear_fc1.weight1"), {8, 3});
  expect_error(ErrorCode::ExpertDtype, [&] { recognized(all); });
  all = tensors();
  resize(named(all, kState + kLayer + "linear_fc1.weight1"), {8, 3, 1});
  expect_error(
      ErrorCode::ExpertShape, [&] { recognized(all); }, "while others are");
  all = tensors(false);
  for (const std::string e : {"0", "1"})
    all.push_back({fmt::format("{}{}linear_fc1.weight{}_w", kState, kLayer, e), Dtype::F64, {4, 3}, {}});
  expect_error(
      ErrorCode::PartMissing, [&] { recognized(all); }, "up");
}

TEST(StateBlock, AnotherShapeStopsChangesOfLayout) {
  std::vector<MemoryTensor> all = tensors();
  for (const std::string e : {"0", "1"})
    resize(named(all, fmt::format("{}{}linear_fc1.weight{}", kState, kLayer, e)), {4, 3, 2});
  const MemorySource source(all, {}, {{"glu", "contiguous"}});
  const Recognition found = recognize_source(source);
  EXPECT_EQ(found.unexplained.size(), 2u);
  EXPECT_EQ(count_states(found), 1u);
  ASSERT_EQ(found.problems.size(), 1u);
  EXPECT_NE(found.problems[0].find("do not have their weights' shapes"), std::string::npos);
  PlanOptions options;
  options.to.glu = interleaved(2);
  expect_error(
      ErrorCode::UnexplainedKey, [&] { make_plan(source.inventory(), found, options); }, kState + kLayer);
  options.to = {};
  options.force = true;
  EXPECT_TRUE(same_tensors(all, convert(source, found, options).tensors));
}

/// fully_sharded_model_space: slices folded into other axes.
TEST(StateBlock, FoldedSlicesOfStackedLayers) {
  const std::string prefix = "decoder.layers.mlp.experts.experts.";
  const std::vector<MemoryTensor> weights{{prefix + "linear_fc1.weight", Dtype::BF16, {2, 4, 8, 3}, {}},
                                          {prefix + "linear_fc2.weight", Dtype::BF16, {2, 4, 3, 4}, {}}};
  const std::vector<std::vector<i64>> shapes[] = {{{1, 2, 8, 3, 4}, {1, 2, 3, 4, 4}},
                                                  {{2, 2, 8, 3, 2}, {1, 4, 3, 4, 2}},
                                                  {{4, 4, 8, 3}, {4, 4, 3, 4}},
                                                  {{1, 4, 8, 3}, {1, 4, 3, 4}},
                                                  {{192}, {96}},
                                                  {{}, {}}};
  for (const auto& pair : shapes) {
    std::vector<MemoryTensor> all = weights;
    for (std::size_t i = 0; i < 2; ++i) all.push_back({kState + weights[i].name, Dtype::F32, pair[i], {}});
    const Recognition found = recognized(all);
    SCOPED_TRACE(shape_text(pair[0]));
    EXPECT_EQ(count_states(found), 0u);
    EXPECT_EQ(found.unexplained, (std::vector<std::size_t>{2, 3}));
    EXPECT_FALSE(found.problems.empty());
  }
}

TEST(StateBlock, StepsStayWithTheirKeys) {
  std::vector<MemoryTensor> all = tensors(false);
  const std::vector<MemoryTensor> weights = all;
  for (const MemoryTensor& weight : weights) {
    all.push_back({"optimizer.state.module." + weight.name + ".step", Dtype::F32, {}, {}});
    all.back().bytes.resize(4);
  }
  const MemorySource source(all, {}, {{"glu", "contiguous"}});
  const Recognition found = recognize_source(source);
  EXPECT_EQ(found.bound.size(), weights.size());
  EXPECT_TRUE(found.problems.empty());
  for (const BoundTensor& bound : found.bound)
    EXPECT_EQ(all[bound.tensor].name, "optimizer.state.module." + all[bound.weight].name + ".step");
  // Rows may move within a tensor that keeps its key.
  PlanOptions options;
  options.to.glu = interleaved(2);
  EXPECT_EQ(convert(source, found, options).tensors.size(), all.size());
  options.to = {};
  options.to.experts = Experts::Grouped;
  expect_error(
      ErrorCode::NotExact, [&] { make_plan(source.inventory(), found, options); }, ".step");
  options.to = {};
  options.to.naming = "megatron-sequential";
  options.to.scope = Scope::Experts;
  expect_error(
      ErrorCode::NotExact, [&] { make_plan(source.inventory(), found, options); }, ".step");
}

TEST(StateBlock, ScopesOfStates) {
  // One model, whatever stands in front of the optimizer's keys.
  std::vector<MemoryTensor> all = tensors();
  for (MemoryTensor& tensor : all)
    if (tensor.name.starts_with(kState)) tensor.name = "chained_1." + tensor.name;
  const Recognition found = recognized(all);
  EXPECT_EQ(count_states(found), 1u);
  EXPECT_EQ(found.blocks[1].key_prefix, "chained_1." + kState + "decoder.layers.0.");
  EXPECT_EQ(layer_label(found.blocks[1]), "chained_1.0");
  // Twice the same state of the same layer.
  std::vector<MemoryTensor> twice = tensors();
  for (const MemoryTensor& weight : tensors(false))
    twice.push_back({"optimizer.state." + weight.name + ".exp_avg", Dtype::F64, weight.shape, {}});
  expect_error(ErrorCode::RedundantKeys, [&] { recognized(twice); });
}

TEST(StateBlock, WhatOnlyEndsLikeAState) {
  std::vector<MemoryTensor> all = tensors(false);
  all.push_back({"optimizer.param_to_group_meta." + kLayer + "linear_fc1.weight0", Dtype::U8, {8, 3}, {}});
  const Recognition found = recognized(all);
  EXPECT_EQ(found.blocks.size(), 1u);
  EXPECT_EQ(found.unexplained.size(), 1u);
}

}  // namespace
}  // namespace glu_ckpt
