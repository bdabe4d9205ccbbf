/// When layers share their tensors, and what may be wrong with tensors that they share.

#include <algorithm>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr Experts kGrouped = Experts::Grouped;
constexpr Experts kIndexed = Experts::Indexed;

ModelSpec model_of(std::vector<i64> layers, bool shared = false) {
  ModelSpec model;
  for (const i64 layer : layers) {
    BlockSpec block;
    block.layer = layer;
    block.hidden = 3;
    block.dtype = Dtype::U16;
    model.blocks.push_back(block);
    block.set = ExpertSet::Shared;
    block.widths = {4};
    if (shared) model.blocks.push_back(block);
  }
  return model;
}

MemoryTensor other(const std::string& name, std::vector<i64> shape) {
  MemoryTensor tensor{name, Dtype::U8, std::move(shape), {}};
  tensor.bytes.resize(static_cast<std::size_t>(tensor_bytes(tensor.dtype, tensor.shape)));
  return tensor;
}

Spelling spelled(const std::string& naming, Experts experts, bool stacked = false) {
  Spelling spelling{naming, experts, experts, contiguous(), contiguous()};
  spelling.stacked = stacked;
  return spelling;
}

bool is_stacked(const std::vector<MemoryTensor>& tensors, const std::string& part) {
  const auto found =
      std::ranges::find_if(tensors, [&](const MemoryTensor& t) { return t.name.find(part) != std::string::npos; });
  return found != tensors.end() && found->name.find("decoder.layers.mlp.") != std::string::npos;
}

/// Whether megatron's indexed experts become stacked ones.
bool becomes_stacked(const ModelSpec& model, const std::string& part = "linear_fc1") {
  const MemorySource source = make_source(model, spelled("megatron", kIndexed));
  PlanOptions options;
  options.to.naming = "megatron-dist";
  options.to.scope = Scope::Experts;
  options.to.experts = kGrouped;
  return is_stacked(convert(source, recognize_source(source), options).tensors, part);
}

TEST(StackedLayers, WhereAllAreAlike) {
  EXPECT_TRUE(becomes_stacked(model_of({0, 1, 2})));
  EXPECT_TRUE(becomes_stacked(model_of({0, 1, 2}, true), "shared_experts"));
  EXPECT_FALSE(becomes_stacked(model_of({1, 2})));
  EXPECT_FALSE(becomes_stacked(model_of({0, 2})));
  ModelSpec differs = model_of({0, 1});
  differs.blocks[1].widths = widths(2, 8);
  EXPECT_FALSE(becomes_stacked(differs));
  differs = model_of({0, 1});
  differs.blocks[1].dtype = Dtype::U32;
  EXPECT_FALSE(becomes_stacked(differs));
  differs = model_of({0, 1});
  differs.blocks[0].bias = true;
  EXPECT_FALSE(becomes_stacked(differs));
  // Shared experts alone could, but keys of one model are numbered all or none.
  differs = model_of({0, 1}, true);
  differs.blocks[2].widths = widths(2, 8);
  EXPECT_FALSE(becomes_stacked(differs, "shared_experts"));
}

TEST(StackedLayers, WhatOtherKeysSay) {
  ModelSpec model = model_of({0, 1});
  model.others = {other("decoder.layers.0.self_attention.linear_proj.weight", {4})};
  EXPECT_FALSE(becomes_stacked(model));
  model.others = {other("model.layers.1.input_layernorm.weight", {4})};
  EXPECT_FALSE(becomes_stacked(model));
  model.others = {other("decoder.layers.self_attention.linear_proj.weight", {2, 4})};
  EXPECT_TRUE(becomes_stacked(model));
  model.others = {other("decoder.layers.self_attention.linear_proj.weight", {3, 4})};
  EXPECT_FALSE(becomes_stacked(model));
  model.others = {other("mtp.layers.0.eh_proj.weight", {4}), other("embedding.weight", {9})};
  EXPECT_TRUE(becomes_stacked(model));
  model.others.clear();
  model.num_hidden_layers = 3;
  EXPECT_FALSE(becomes_stacked(model));
}

/// Experts with a key for each layer beside tensors of all layers are no model of any program.
TEST(StackedLayers, TheRestMustFollow) {
  ModelSpec model = model_of({0, 1});
  PlanOptions options;
  options.to.naming = "megatron";
  const auto renamed = [&] {
    const MemorySource source = make_source(model, spelled("megatron-dist", kGrouped, true));
    return convert(source, recognize_source(source), options).tensors;
  };
  EXPECT_EQ(renamed().size(), 4u);
  model.others = {other("decoder.layers.self_attention.linear_proj.weight", {2, 4})};
  expect_error(
      ErrorCode::NoMap, [&] { renamed(); }, "'decoder.layers.self_attention.linear_proj.weight' and others would stay");
  options.to.scope = Scope::Experts;
  EXPECT_EQ(renamed().size(), 5u);
}

TEST(StackedLayers, KeepKeeps) {
  for (const bool stacked : {true, false}) {
    const ModelSpec model = model_of({0, 1}, true);
    const Spelling spelling = spelled("megatron-dist", kGrouped, stacked);
    const MemorySource source = make_source(model, spelling);
    PlanOptions options;
    options.to.glu = interleaved(2);
    const Converted converted = convert(source, recognize_source(source), options);
    EXPECT_EQ(is_stacked(converted.tensors, "linear_fc1"), stacked);
    EXPECT_EQ(is_stacked(converted.tensors, "shared_experts"), stacked);
  }
}

TEST(StackedLayers, MtpLayersAreNumbered) {
  ModelSpec model = model_of({0, 1});
  BlockSpec mtp = model.blocks[0];
  mtp.stack = "mtp";
  model.blocks.push_back(mtp);
  expect_converts(model, spelled("megatron", kIndexed), spelled("megatron-dist", kGrouped, true));
  expect_converts(model, spelled("megatron-dist", kGrouped, true), spelled("megatron", kIndexed));
}

/// Hybrid models have stacks of layers inside each MTP layer.
TEST(StackedLayers, NestedMtpKeepsBothNumbers) {
  std::vector<MemoryTensor> tensors;
  for (const std::string layer : {"mtp.layers.0.mtp_model_layer.layers.1.", "mtp.layers.1.mtp_model_layer.layers.0.",
                                  "mtp.layers.1.mtp_model_layer.layers.1.", "decoder.layers.1."}) {
    tensors.push_back(other(layer + "mlp.experts.experts.linear_fc1.weight", {2, 8, 3}));
    tensors.push_back(other(layer + "mlp.experts.experts.linear_fc2.weight", {2, 3, 4}));
  }
  const MemorySource source(tensors);
  SourceAnswers answers;
  answers.glu = contiguous();
  const Recognition found = recognize_source(source, answers);
  std::vector<std::string> labels;
  for (const ExpertBlock& block : found.blocks) labels.push_back(layer_label(block));
  std::ranges::sort(labels);
  EXPECT_EQ(labels, (std::vector<std::string>{"1", "mtp.0.1", "mtp.1.0", "mtp.1.1"}));
  PlanOptions options;
  options.to.naming = "megatron";
  options.to.scope = Scope::Experts;
  const Converted converted = convert(source, found, options);
  EXPECT_NE(std::ranges::find(converted.tensors, "mtp.layers.1.mtp_model_layer.layers.0.mlp.experts.linear_fc1.weight",
                              &MemoryTensor::name),
            converted.tensors.end());
  options.to.naming = "hf:deepseek_v3";
  options.to.scope = Scope::Experts;
  expect_error(
      ErrorCode::NoSpelling, [&] { make_plan(source.inventory(), found, options); }, "mtp.0");
}

void expect_fault(ErrorCode code, const std::vector<MemoryTensor>& tensors, const std::string& word) {
  expect_error(
      code, [&] { recognize(make_inventory(tensors), {}, {}, {}); }, word);
}

TEST(StackedLayers, Faults) {
  const std::string prefix = "decoder.layers.mlp.experts.experts.";
  const MemoryTensor fc1 = other(prefix + "linear_fc1.weight", {2, 2, 8, 3});
  const MemoryTensor fc2 = other(prefix + "linear_fc2.weight", {2, 2, 3, 4});
  expect_fault(ErrorCode::ExpertShape, {fc1, other(prefix + "linear_fc2.weight", {3, 2, 3, 4})}, "layers");
  expect_fault(ErrorCode::ExpertShape, {fc1, other(prefix + "linear_fc2.weight", {2, 2, 3, 5})}, "each of 2 layers");
  expect_fault(ErrorCode::ExpertShape, {fc1, other(prefix + "linear_fc2.weight", {0, 2, 3, 4})}, "layers");
  expect_fault(ErrorCode::ExpertShape, {fc1, other(prefix + "linear_fc2.weight", {24})}, "leading axis");
  // An absurd axis is refused before a block is made for each layer.
  expect_fault(ErrorCode::ExpertShape,
               {{prefix + "linear_fc1.weight", Dtype::U8, {i64{1} << 40, 0, 8, 3}, {}},
                {prefix + "linear_fc2.weight", Dtype::U8, {i64{1} << 40, 0, 3, 4}, {}}},
               "100000 layers");
  expect_fault(ErrorCode::PartMissing, {fc1}, "FC2");
  expect_fault(ErrorCode::RedundantKeys,
               {fc1, fc2, other("decoder.layers.1.mlp.experts.experts.linear_fc1.weight", {2, 8, 3})}, "twice");
  expect_fault(ErrorCode::ExpertMissing, {fc1, fc2, other("decoder.layers.mlp.router.weight", {2, 3, 3})}, "router");
}

/// Keys of shared experts are common to Megatron's rows; those of routed ones decide.
TEST(StackedLayers, SharedKeysAreNoNaming) {
  for (const std::string naming : {"megatron", "megatron-sequential", "megatron-dist"}) {
    const MemorySource source(build(model_of({0, 1}, true), spelled(naming, kGrouped)));
    EXPECT_EQ(recognize_source(source).naming->name, naming);
  }
}

}  // namespace
}  // namespace glu_ckpt
