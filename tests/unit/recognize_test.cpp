/// Names, shapes and hints in, layout out. Inventories are made up: nothing here has bytes.

#include <algorithm>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

using Tensors = std::vector<MemoryTensor>;

MemoryTensor tensor(const std::string& name, std::vector<i64> shape, Dtype dtype = Dtype::BF16) {
  return {name, dtype, std::move(shape), {}};
}

Recognition recognized(const Tensors& tensors, const std::string& model_type = {}, const SourceAnswers& answers = {},
                       const Record& record = {}) {
  ModelHints hints;
  hints.model_type = model_type;
  return recognize(make_inventory(tensors), hints, record, answers);
}

SourceAnswers from_naming(const std::string& naming) { return {naming, {}, {}}; }

ModelSpec model_of(i64 experts = 3, bool bias = false) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = 4;
  block.widths = widths(experts, 6);
  block.bias = bias;
  block.dtype = Dtype::BF16;
  model.blocks.push_back(block);
  return model;
}

Tensors megatron(i64 experts = 3, bool bias = false) {
  return build(model_of(experts, bias), {"megatron", Experts::Indexed, Experts::Indexed, contiguous(), split()});
}

Tensors qwen(i64 experts = 3) {
  return build(model_of(experts), {"hf:qwen3_moe", Experts::Indexed, Experts::Indexed, split(), split()});
}

Tensors packed(i64 experts, i64 width, i64 hidden, bool in_out) {
  if (in_out)
    return {tensor("model.layers.0.mlp.experts.gate_up_proj", {experts, hidden, 2 * width}),
            tensor("model.layers.0.mlp.experts.down_proj", {experts, width, hidden})};
  return {tensor("model.layers.0.mlp.experts.gate_up_proj", {experts, 2 * width, hidden}),
          tensor("model.layers.0.mlp.experts.down_proj", {experts, hidden, width})};
}

MemoryTensor& named(Tensors& tensors, const std::string& part) {
  return *std::ranges::find_if(tensors, [&](const auto& t) { return t.name.find(part) != std::string::npos; });
}

void drop(Tensors& tensors, const std::string& part) {
  std::erase_if(tensors, [&](const auto& t) { return t.name.find(part) != std::string::npos; });
}

// ---- experts ------------------------------------------------------------------------------------

TEST(Recognize, ExpertsAreSortedAsNumbers) {
  Tensors tensors = qwen(12);
  std::ranges::sort(tensors, {}, &MemoryTensor::name);
  const Recognition found = recognized(tensors);
  ASSERT_EQ(found.blocks.size(), 1u);
  EXPECT_EQ(found.blocks[0].num_experts, 12);
  for (const Matrix& matrix : found.blocks[0].matrices) {
    const std::string& name = tensors[matrix.tensor].name;
    EXPECT_NE(name.find("experts." + std::to_string(matrix.expert) + "."), std::string::npos) << name;
  }
}

TEST(Recognize, SharedExpertsAreNoRoutedOnes) {
  Tensors tensors = megatron();
  tensors.push_back(tensor("decoder.layers.0.mlp.shared_experts.linear_fc1.weight", {20, 4}));
  tensors.push_back(tensor("decoder.layers.0.mlp.shared_experts.linear_fc2.weight", {4, 10}));
  const Recognition found = recognized(tensors);
  ASSERT_EQ(found.blocks.size(), 2u);
  EXPECT_EQ(found.blocks[0].set, ExpertSet::Routed);
  EXPECT_EQ(found.blocks[0].intermediate_size, 6);
  EXPECT_EQ(found.blocks[1].set, ExpertSet::Shared);
  EXPECT_EQ(found.blocks[1].intermediate_size, 10);
  EXPECT_EQ(found.blocks[1].num_experts, 1);
}

TEST(Recognize, MissingExperts) {
  for (const std::string gone : {"experts.0.", "experts.1.", "experts.1.up", "experts.2.down"}) {
    Tensors tensors = qwen();
    drop(tensors, gone);
    expect_error(
        ErrorCode::ExpertMissing, [&] { recognized(tensors); }, "expert " + gone.substr(8, 1));
  }
  ModelHints hints;
  hints.num_experts = 4;
  const Tensors tensors = qwen();
  expect_error(
      ErrorCode::ExpertMissing, [&] { recognize(make_inventory(tensors), hints, {}, {}); }, "config.json says 4");
}

TEST(Recognize, ExtraExperts) {
  ModelHints hints;
  hints.num_experts = 2;
  expect_error(ErrorCode::ExpertExtra, [&] { recognize(make_inventory(qwen()), hints, {}, {}); });
  Tensors tensors = qwen();
  tensors.push_back(tensor("model.layers.0.mlp.experts.3.up_proj.weight", {6, 4}));
  expect_error(
      ErrorCode::ExpertExtra, [&] { recognized(tensors); }, "expert 3");
}

TEST(Recognize, MissingParts) {
  Tensors tensors = qwen();
  drop(tensors, "down_proj");
  expect_error(
      ErrorCode::PartMissing, [&] { recognized(tensors); }, "down");
  tensors = qwen();
  drop(tensors, "up_proj");
  expect_error(
      ErrorCode::PartMissing, [&] { recognized(tensors); }, "up");
}

TEST(Recognize, ShapesThatDoNotFit) {
  for (const auto& shape : std::vector<std::vector<i64>>{{6, 5}, {5, 4}, {4, 6}, {24}, {}, {6, 4, 1}, {0, 4}, {6, 0}}) {
    Tensors tensors = qwen();
    named(tensors, "experts.1.up_proj").shape = shape;
    expect_error(
        ErrorCode::ExpertShape, [&] { recognized(tensors); }, "experts.1.up_proj");
  }
  Tensors tensors = qwen();
  named(tensors, "experts.2.down_proj").shape = {5, 6};
  expect_error(
      ErrorCode::ExpertShape, [&] { recognized(tensors); }, "experts.2.down_proj");
}

TEST(Recognize, DtypesThatDiffer) {
  Tensors tensors = qwen();
  named(tensors, "experts.2.up_proj").dtype = Dtype::F16;
  expect_error(
      ErrorCode::ExpertDtype, [&] { recognized(tensors); }, "experts.2.up_proj");
}

TEST(Recognize, ExpertsOfDifferentWidthAreAProblemOnlyForGrouping) {
  ModelSpec model = model_of();
  model.blocks[0].widths = {6, 8, 6};
  const Recognition found =
      recognized(build(model, {"hf:qwen3_moe", Experts::Indexed, Experts::Indexed, split(), split()}));
  EXPECT_EQ(found.blocks[0].intermediate_size, -1);
  EXPECT_EQ(found.problems.size(), 1u);
}

// ---- biases ---------------------------------------------------------------------------------------

TEST(Recognize, BiasesOnSomeExperts) {
  Tensors tensors = megatron(3, true);
  drop(tensors, "linear_fc1.bias1");
  expect_error(
      ErrorCode::BiasIncomplete, [&] { recognized(tensors); }, "expert 1");
  tensors = megatron(3, true);
  drop(tensors, "linear_fc1.bias2");
  expect_error(
      ErrorCode::BiasIncomplete, [&] { recognized(tensors); }, "expert 2");
}

TEST(Recognize, BiasesOfFc2Only) {
  Tensors tensors = megatron(3, true);
  drop(tensors, "linear_fc1.bias");
  EXPECT_EQ(recognized(tensors).blocks[0].matrices.size(), 3u + 3u + 3u);
}

TEST(Recognize, WeightsAndBiasesAreGroupedEachTheirOwnWay) {
  for (const Experts weights : {Experts::Indexed, Experts::Grouped})
    for (const Experts biases : {Experts::Indexed, Experts::Grouped}) {
      const Recognition found =
          recognized(build(model_of(3, true), {"megatron", weights, biases, contiguous(), split()}));
      EXPECT_EQ(found.blocks[0].experts, weights);
      EXPECT_EQ(found.blocks[0].bias_experts, biases);
      EXPECT_EQ(found.layout.experts, to_string(weights));
    }
}

TEST(Recognize, BiasesOfThreeAxes) {
  Tensors tensors = build(model_of(3, true), {"megatron", Experts::Grouped, Experts::Grouped, contiguous(), split()});
  named(tensors, "linear_fc1.bias").shape = {3, 1, 12};
  named(tensors, "linear_fc2.bias").shape = {3, 1, 4};
  EXPECT_EQ(recognized(tensors).blocks[0].bias_experts, Experts::Grouped);
  named(tensors, "linear_fc1.bias").shape = {3, 12, 1};
  expect_error(
      ErrorCode::ExpertShape, [&] { recognized(tensors); }, "linear_fc1.bias");
  named(tensors, "linear_fc1.bias").shape = {3, 11};
  expect_error(
      ErrorCode::ExpertShape, [&] { recognized(tensors); }, "linear_fc1.bias");
}

// ---- both sets of keys ------------------------------------------------------------------------------

TEST(Recognize, IndexedAndGroupedTogether) {
  Tensors tensors = megatron();
  tensors.push_back(tensor("decoder.layers.0.mlp.experts.linear_fc1.weight", {3, 12, 4}));
  expect_error(
      ErrorCode::RedundantKeys, [&] { recognized(tensors); }, "linear_fc1.weight");
  tensors.push_back(tensor("decoder.layers.0.mlp.experts.linear_fc2.weight", {3, 4, 6}));
  expect_error(ErrorCode::RedundantKeys, [&] { recognized(tensors); });
}

TEST(Recognize, FusedAndSplitTogether) {
  Tensors tensors = qwen();
  for (const int e : {0, 1, 2})
    tensors.push_back(tensor("model.layers.0.mlp.experts." + std::to_string(e) + ".gate_up_proj.weight", {12, 4}));
  expect_error(
      ErrorCode::RedundantKeys, [&] { recognized(tensors); }, "gate_up_proj");
}

TEST(Recognize, TwoSpellingsInOneCheckpoint) {
  Tensors tensors = qwen();
  for (MemoryTensor& more : megatron()) tensors.push_back(more);
  expect_error(ErrorCode::UnexplainedKey, [&] { recognized(tensors); });
}

TEST(Recognize, PaddedOrHugeNumbersAreNoExperts) {
  Tensors tensors = qwen();
  named(tensors, "experts.1.up_proj").name = "model.layers.0.mlp.experts.01.up_proj.weight";
  expect_error(ErrorCode::ExpertMissing, [&] { recognized(tensors); });
  tensors = qwen();
  named(tensors, "experts.1.up_proj").name = "model.layers.0.mlp.experts.999999999.up_proj.weight";
  EXPECT_THROW(recognized(tensors), Error);
}

/// The text model of a multimodal checkpoint, beside a copy of it that is spelled as a language model.
TEST(Recognize, OneLayerUnderTwoStems) {
  Tensors tensors = qwen();
  for (MemoryTensor& more : qwen()) {
    more.name.insert(6, "language_model.");
    tensors.push_back(more);
  }
  expect_error(ErrorCode::RedundantKeys, [&] { recognized(tensors, "qwen3_moe"); });
}

/// Both spellings of a stack at once: neither tensor may be dropped silently.
TEST(Recognize, OneLayerUnderTwoNames) {
  for (const int experts : {1, 2}) {
    Tensors tensors;
    for (const std::string stem : {"mtp.layers.0.transformer_layer.", "mtp.layers.0.mtp_model_layer."})
      for (int e = 0; e < experts; ++e) {
        tensors.push_back(tensor(stem + "mlp.experts.linear_fc1.weight" + std::to_string(e), {12, 4}));
        tensors.push_back(tensor(stem + "mlp.experts.linear_fc2.weight" + std::to_string(e), {4, 6}));
      }
    expect_error(ErrorCode::RedundantKeys, [&] { recognized(tensors); });
  }
}

// ---- which family ---------------------------------------------------------------------------------

TEST(Recognize, PackedWithoutAFamilyIsAmbiguous) {
  expect_error(
      ErrorCode::AmbiguousNaming, [] { recognized(packed(3, 6, 5, true)); }, "--from-naming");
  expect_error(ErrorCode::AmbiguousNaming, [] { recognized(packed(3, 4, 4, true)); });
  // A family that nobody knows is no answer either.
  expect_error(ErrorCode::AmbiguousNaming, [] { recognized(packed(3, 6, 5, true), "new_family"); });
}

TEST(Recognize, TheFamilySettlesPackedKeys) {
  for (const auto& sizes : {std::pair<i64, i64>{6, 5}, {4, 4}, {4, 8}, {8, 4}}) {
    const i64 width = sizes.first;
    const i64 hidden = sizes.second;
    SCOPED_TRACE(shape_text({width, hidden}));
    const Tensors in_out = packed(3, width, hidden, true);
    const Tensors out_in = packed(3, width, hidden, false);
    const auto check = [&](const Recognition& found, const Glu& glu, Axes axes) {
      EXPECT_EQ(to_string(found.layout.glu), to_string(glu));
      EXPECT_EQ(found.layout.glu_source, "naming");
      EXPECT_EQ(found.blocks[0].axes, axes);
      EXPECT_EQ(found.blocks[0].hidden_size, hidden);
      EXPECT_EQ(found.blocks[0].intermediate_size, width);
    };
    check(recognized(in_out, "gpt_oss"), interleaved(1), Axes::InOut);
    check(recognized(in_out, {}, from_naming("hf:gpt_oss")), interleaved(1), Axes::InOut);
    check(recognized(in_out, "openai_privacy_filter"), contiguous(), Axes::InOut);
    check(recognized(in_out, {}, from_naming("hf:openai_privacy_filter")), contiguous(), Axes::InOut);
    check(recognized(in_out, "qwen3_vl_moe"), contiguous(), Axes::InOut);
    check(recognized(out_in, "qwen3_vl_moe"), contiguous(), Axes::OutIn);
    check(recognized(out_in, "qwen3_moe"), contiguous(), Axes::OutIn);
    check(recognized(out_in, {}, from_naming("hf:qwen3_vl_moe-v5")), contiguous(), Axes::OutIn);
    expect_error(ErrorCode::ExpertShape, [&] { recognized(out_in, "gpt_oss"); });
    expect_error(ErrorCode::ExpertShape, [&] { recognized(in_out, "qwen3_moe"); });
  }
}

TEST(Recognize, AnAnswerThatDoesNotExplainTheKeys) {
  expect_error(ErrorCode::UnknownNaming, [] { recognized(qwen(), {}, from_naming("qwen3_moe")); });
  expect_error(ErrorCode::UnexplainedKey, [] { recognized(qwen(), {}, from_naming("megatron")); });
  expect_error(ErrorCode::RecordContradicts, [] { recognized(qwen(), {}, {}, {{"naming", "megatron"}}); });
  expect_error(ErrorCode::RecordInvalid, [] { recognized(qwen(), {}, {}, {{"naming", "new"}}); });
  expect_error(ErrorCode::RecordContradicts, [] {
    recognized(qwen(), {}, {}, {{"naming", "hf:qwen3_moe"}, {"experts", "grouped"}});
  });
  // The words of a config.json only choose between namings that fit.
  EXPECT_EQ(recognized(megatron(), "gpt_oss").layout.naming, "megatron");
}

// ---- Megatron's other shapes ------------------------------------------------------------------------

TEST(Recognize, StackedAndFlatGroupedTensors) {
  const std::string stem = "decoder.layers.0.mlp.";
  const MemoryTensor router = tensor(stem + "router.weight", {3, 4});
  const Tensors stacked{tensor(stem + "experts.linear_fc1.weight", {3 * 12, 4}),
                        tensor(stem + "experts.linear_fc2.weight", {3 * 4, 6}), router};
  const Tensors flat{tensor(stem + "experts.linear_fc1.weight", {3 * 12 * 4}),
                     tensor(stem + "experts.linear_fc2.weight", {3 * 4 * 6}), router};
  for (const Tensors& tensors : {stacked, flat}) {
    const Recognition found = recognized(tensors);
    EXPECT_EQ(found.blocks[0].num_experts, 3);
    EXPECT_EQ(found.blocks[0].hidden_size, 4);
    EXPECT_EQ(found.blocks[0].intermediate_size, 6);
    EXPECT_EQ(found.others.size(), 1u);
  }
  expect_error(ErrorCode::ExpertShape, [&] { recognized({flat[0], flat[1]}); });
  Tensors odd = flat;
  odd[0].shape[0] += 3;
  expect_error(ErrorCode::ExpertShape, [&] { recognized(odd); });
  // transformers takes no flat ones.
  const std::string packed = "model.layers.0.mlp.";
  const MemoryTensor gate = tensor(packed + "gate.weight", {3, 4});
  expect_error(ErrorCode::ExpertShape, [&] {
    recognized({tensor(packed + "experts.gate_up_proj", {3 * 12 * 4}),
                tensor(packed + "experts.down_proj", {3 * 4 * 6}), gate},
               "qwen3_moe");
  });
}

TEST(Recognize, ExpertsWithoutAGate) {
  for (const std::string naming : {"hf:nemotron_h", "megatron"})
    for (const Experts experts : {Experts::Indexed, Experts::Grouped}) {
      ModelSpec model = model_of(3, true);
      model.blocks[0].gated = false;
      const Recognition found = recognized(build(model, {naming, experts, experts, {Glu::Kind::None, 0}, split()}));
      EXPECT_EQ(found.layout.glu.kind, Glu::Kind::None);
      EXPECT_EQ(found.blocks[0].intermediate_size, 6);
      EXPECT_EQ(found.blocks[0].matrices.size(), 2u * 2u * 3u);
    }
  // Some experts gated and some not is a mistake, not a family.
  Tensors tensors = megatron();
  named(tensors, "linear_fc1.weight1").shape = {6, 4};
  expect_error(ErrorCode::ExpertShape, [&] { recognized(tensors); });
}

TEST(Recognize, AGateThatOneLayerAloneLacksWasLost) {
  for (const ExpertSet set : {ExpertSet::Routed, ExpertSet::Shared}) {
    ModelSpec model = model_of(3, true);
    for (i64 layer = 0; layer < 2; ++layer) {
      BlockSpec block = model.blocks[0];
      block.layer = layer;
      block.set = ExpertSet::Shared;
      block.widths = {6};
      if (layer == 1) model.blocks.push_back(model.blocks[0]), model.blocks.back().layer = 1;
      model.blocks.push_back(block);
    }
    Tensors tensors = build(model, {"hf:qwen2_moe", Experts::Indexed, Experts::Indexed, split(), split()});
    ASSERT_EQ(recognized(tensors).blocks.size(), 4u);
    const std::string word = set == ExpertSet::Routed ? "layers.1.mlp.experts." : "layers.1.mlp.shared_expert.";
    std::erase_if(tensors, [&](const MemoryTensor& each) {
      return each.name.find(word) != std::string::npos && each.name.find("gate_proj") != std::string::npos;
    });
    expect_error(ErrorCode::PartMissing, [&] { recognized(tensors); });
  }
}

/// Megatron saves that K is None of every run; of one without a gate this is no order.
TEST(Recognize, SavedArgumentsOrderNoGateThatIsNotThere) {
  ModelSpec model = model_of(3, true);
  model.blocks[0].gated = false;
  const Tensors tensors = build(model, {"megatron", Experts::Grouped, Experts::Grouped, {Glu::Kind::None, 0}, split()});
  ModelHints hints;
  hints.trained.glu = hints.trained.shared_glu = "contiguous";
  EXPECT_EQ(recognize(make_inventory(tensors), hints, {}, {}).layout.glu.kind, Glu::Kind::None);
  hints.trained.glu = "interleaved:2";
  expect_error(ErrorCode::RecordContradicts, [&] { recognize(make_inventory(tensors), hints, {}, {}); });
}

// ---- what is no expert --------------------------------------------------------------------------------

TEST(Recognize, RoutersAndTheirBiasesAreNoExperts) {
  Tensors tensors = build(model_of(), {"hf:qwen2_moe", Experts::Indexed, Experts::Indexed, split(), split()});
  tensors.push_back(tensor("model.layers.0.mlp.experts.e_score_correction_bias", {3}));
  tensors.push_back(tensor("model.layers.0.mlp.gate.weight", {3, 4}));
  const Recognition found = recognized(tensors, "laguna");
  EXPECT_EQ(found.layout.naming, "hf:laguna");
  EXPECT_EQ(found.others.size(), 2u);
  EXPECT_TRUE(found.unexplained.empty());
}

/// JetMoE's attention has experts as well, which are no MLPs.
TEST(Recognize, ExpertsOfTheAttentionAreNoExperts) {
  Tensors tensors =
      build(model_of(), {"hf:jetmoe", Experts::Grouped, Experts::Grouped, {Glu::Kind::Contiguous, 0}, split()});
  const std::string attention = "model.layers.0.self_attention.experts.";
  const std::size_t before = recognized(tensors).others.size();
  tensors.push_back(tensor(attention + "input_linear.weight", {3, 6, 4}));
  tensors.push_back(tensor(attention + "output_linear.weight", {3, 4, 6}));
  tensors.push_back(tensor(attention + "bias", {4}));
  const Recognition found = recognized(tensors);
  EXPECT_EQ(found.layout.naming, "hf:jetmoe");
  EXPECT_EQ(found.others.size(), before + 3);
  EXPECT_TRUE(found.unexplained.empty() && found.problems.empty());
}

TEST(Recognize, KeysThatLookLikeExpertsAreReported) {
  Tensors tensors = qwen();
  tensors.push_back(tensor("model.layers.0.mlp.experts.0.up_proj.qweight", {3}));
  tensors.push_back(tensor("model.layers.0.mlp.shared_experts.scales", {3}));
  tensors.push_back(tensor("model.layers.0.mlp.experts.linear_fc1._extra_state", {3}));
  const Recognition found = recognized(tensors);
  EXPECT_EQ(found.unexplained.size(), 2u);
  EXPECT_EQ(found.others.size(), 3u);
  EXPECT_EQ(found.problems.size(), 1u);
}

TEST(Recognize, DenseModelsHaveNoLayout) {
  const Recognition found = recognized(other_tensors(), "llama");
  EXPECT_TRUE(found.blocks.empty());
  EXPECT_EQ(found.naming, nullptr);
  EXPECT_EQ(found.others.size(), other_tensors().size());
  EXPECT_TRUE(recognized({}).blocks.empty());
}

}  // namespace
}  // namespace glu_ckpt
