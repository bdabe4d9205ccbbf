#include <fmt/format.h>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

ModelSpec model_of(i64 width = 4, i64 hidden = 4, Dtype dtype = Dtype::F32) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = hidden;
  block.widths = widths(3, width);
  block.dtype = dtype;
  model.blocks.push_back(block);
  return model;
}

Spelling spelled(const std::string& naming, Experts experts, const Glu& glu) {
  return {naming, experts, experts, glu, split()};
}

Plan plan_of(const MemorySource& source, const TargetAnswers& to, const SourceAnswers& from = {}, bool force = false) {
  PlanOptions options;
  options.to = to;
  options.force = force;
  const Plan plan = make_plan(source.inventory(), recognize_source(source, from), options);
  check_plan(source.inventory(), plan);
  return plan;
}

// ---- refusals ---------------------------------------------------------------------------------

TEST(MakePlan, RefusesTheLayoutThatIsThere) {
  const MemorySource source = make_source(model_of(), spelled("megatron", Experts::Indexed, contiguous()));
  expect_error(ErrorCode::AlreadyInLayout, [&] { plan_of(source, {}); });
  TargetAnswers same;
  same.glu = contiguous();
  expect_error(ErrorCode::AlreadyInLayout, [&] { plan_of(source, same); });
  // K = F is contiguous by another name.
  same.glu = interleaved(4);
  expect_error(ErrorCode::AlreadyInLayout, [&] { plan_of(source, same); });
  same.experts = Experts::Indexed;
  same.naming = "megatron";
  same.scope = Scope::Experts;
  expect_error(ErrorCode::AlreadyInLayout, [&] { plan_of(source, same); });
  EXPECT_EQ(plan_of(source, same, {}, true).outputs.size(), source.tensors().size());
}

TEST(MakePlan, RefusesWithoutExperts) {
  const MemorySource source(other_tensors());
  expect_error(ErrorCode::NoExperts, [&] { plan_of(source, {}, {}, true); });
}

TEST(MakePlan, RefusesWhatDependsOnAnUnknownOrder) {
  const MemorySource source(build(model_of(), spelled("megatron", Experts::Indexed, contiguous())));
  TargetAnswers to;
  for (const Glu& glu : {split(), contiguous(), interleaved(2)}) {
    to.glu = glu;
    expect_error(
        ErrorCode::UnknownGlu, [&] { plan_of(source, to); }, "--from-glu");
  }
  // Its native grouped form is contiguous, so these names would say so.
  to = {};
  to.naming = "hf:qwen3_moe";
  to.scope = Scope::Experts;
  to.experts = Experts::Grouped;
  expect_error(ErrorCode::UnknownGlu, [&] { plan_of(source, to); });
  to.naming = "hf:gpt_oss";
  to.scope = Scope::Experts;
  expect_error(ErrorCode::UnknownGlu, [&] { plan_of(source, to); });
}

TEST(MakePlan, RegroupsWithoutKnowingTheOrder) {
  const ModelSpec model = model_of();
  const MemorySource source(build(model, spelled("megatron", Experts::Indexed, interleaved(2))));
  PlanOptions options;
  options.to.experts = Experts::Grouped;
  const Converted grouped = convert(source, recognize_source(source), options);
  EXPECT_TRUE(same_tensors(build(model, spelled("megatron", Experts::Grouped, interleaved(2))), grouped.tensors));
  EXPECT_EQ(grouped.plan.to.glu.kind, Glu::Kind::Unknown);
  options.to.naming = "megatron-sequential";
  options.to.scope = Scope::Experts;
  options.to.experts = Experts::Indexed;
  EXPECT_TRUE(same_tensors(build(model, spelled("megatron-sequential", Experts::Indexed, interleaved(2))),
                           convert(source, recognize_source(source), options).tensors));
}

/// Grouped under its own name, FC1 would be read as contiguous, whatever it is.
TEST(MakePlan, RefusesAGroupingThatClaimsAnOrder) {
  const MemorySource source(build(model_of(), spelled("hf:qwen3_moe", Experts::Indexed, interleaved(2))));
  ASSERT_EQ(recognize_source(source).layout.glu.kind, Glu::Kind::Unknown);
  TargetAnswers to;
  to.experts = Experts::Grouped;
  expect_error(ErrorCode::UnknownGlu, [&] { plan_of(source, to); });
}

/// [E * 2F, H] and [E * 2F * H] hold the same bytes as [E, 2F, H].
TEST(MakePlan, StackedAndFlatGroupedTensors) {
  ModelSpec model = model_of(6, 4);
  model.others.push_back({"decoder.layers.0.mlp.router.weight", Dtype::U8, {3, 4}, std::vector<std::byte>(12)});
  const Spelling grouped = spelled("megatron", Experts::Grouped, interleaved(2));
  for (const bool flat : {false, true}) {
    std::vector<MemoryTensor> tensors = build(model, grouped);
    for (MemoryTensor& tensor : tensors) {
      auto& shape = tensor.shape;
      if (shape.size() == 3)
        shape =
            flat ? std::vector<i64>{shape[0] * shape[1] * shape[2]} : std::vector<i64>{shape[0] * shape[1], shape[2]};
    }
    const MemorySource source(tensors, {}, record_of(model, grouped));
    for (const Spelling& to :
         {spelled("megatron", Experts::Indexed, contiguous()), spelled("megatron", Experts::Grouped, split()),
          spelled("hf:gpt_oss", Experts::Grouped, interleaved(1))})
      EXPECT_TRUE(
          same_tensors(build(model, to), convert(source, recognize_source(source), options_for(model, to)).tensors));
    EXPECT_EQ(digest_of(source), digest_of(make_source(model, grouped)));
  }
}

/// Layers may be grouped each their own way; what is not asked for stays.
TEST(MakePlan, MixedLayers) {
  ModelSpec first = model_of(6, 4);
  ModelSpec second = first;
  second.blocks[0].layer = 1;
  const auto mixed = [&](const Glu& glu) {
    std::vector<MemoryTensor> tensors = build(first, spelled("megatron", Experts::Indexed, glu));
    for (MemoryTensor& tensor : build(second, spelled("megatron", Experts::Grouped, glu))) tensors.push_back(tensor);
    return tensors;
  };
  const MemorySource source(mixed(contiguous()), {}, {{"experts", "mixed"}, {"glu", "contiguous"}});
  PlanOptions options;
  options.to.glu = interleaved(3);
  const Converted converted = convert(source, recognize_source(source), options);
  EXPECT_EQ(converted.plan.to.experts, "mixed");
  EXPECT_TRUE(same_tensors(mixed(interleaved(3)), converted.tensors));
}

TEST(MakePlan, RefusesBlocksThatDoNotDivide) {
  const MemorySource source = make_source(model_of(48), spelled("megatron", Experts::Indexed, contiguous()));
  TargetAnswers to;
  to.glu = interleaved(32);
  expect_error(
      ErrorCode::NotDivisible, [&] { plan_of(source, to); },
      "linear_fc1.weight0: 96 rows; interleaved:32 needs a multiple of 64");
  to.glu = interleaved(49);
  expect_error(ErrorCode::NotDivisible, [&] { plan_of(source, to); });
  to.glu = interleaved(i64{1} << 62);
  expect_error(ErrorCode::NotDivisible, [&] { plan_of(source, to); });
}

TEST(MakePlan, RefusesToGroupExpertsOfDifferentWidth) {
  ModelSpec model = model_of();
  model.blocks[0].widths = {4, 8, 4};
  const MemorySource source = make_source(model, spelled("megatron", Experts::Indexed, contiguous()));
  TargetAnswers to;
  to.experts = Experts::Grouped;
  expect_error(ErrorCode::RaggedExperts, [&] { plan_of(source, to); });
  expect_converts(model, spelled("megatron", Experts::Indexed, contiguous()),
                  spelled("hf:mixtral", Experts::Indexed, interleaved(2)));
}

TEST(MakePlan, RefusesNamingsWithoutAPlace) {
  ModelSpec model = model_of();
  BlockSpec shared = model.blocks[0];
  shared.set = ExpertSet::Shared;
  shared.widths = {8};
  model.blocks.push_back(shared);
  const MemorySource source = make_source(model, spelled("hf:qwen2_moe", Experts::Indexed, split()));
  TargetAnswers to;
  to.naming = "hf:gpt_oss";
  to.scope = Scope::Experts;
  expect_error(
      ErrorCode::NoSpelling, [&] { plan_of(source, to); }, "shared");
  to.naming = "hf:nothing";
  to.scope = Scope::Experts;
  expect_error(ErrorCode::UnknownNaming, [&] { plan_of(source, to); });
}

TEST(MakePlan, RefusesDifferentDtypesInOneTensor) {
  std::vector<MemoryTensor> tensors = build(model_of(), spelled("hf:qwen3_moe", Experts::Indexed, split()));
  for (MemoryTensor& tensor : tensors)
    if (tensor.name.find("up_proj") != std::string::npos) tensor.dtype = Dtype::I32;
  const MemorySource source(tensors);
  TargetAnswers to;
  to.glu = contiguous();
  expect_error(ErrorCode::NotExact, [&] { plan_of(source, to); });
}

TEST(MakePlan, RefusesNamesThatWouldCollide) {
  ModelSpec model = model_of();
  model.others.push_back({"decoder.layers.0.mlp.experts.linear_fc1.weight0.", Dtype::U8, {1}, {std::byte{1}}});
  std::vector<MemoryTensor> tensors = build(model, spelled("hf:mixtral", Experts::Indexed, split()));
  tensors.push_back({"decoder.layers.0.mlp.experts.linear_fc2.weight", Dtype::U8, {1}, {std::byte{1}}});
  const MemorySource source(tensors, {}, record_of(model, spelled("hf:mixtral", Experts::Indexed, split())));
  TargetAnswers to;
  to.naming = "megatron";
  to.scope = Scope::Experts;
  to.experts = Experts::Grouped;
  EXPECT_THROW(plan_of(source, to), Error);
}

TEST(MakePlan, RefusesToLeaveUnexplainedPartsBehind) {
  std::vector<MemoryTensor> tensors = build(model_of(), spelled("hf:qwen3_moe", Experts::Indexed, split()));
  tensors.push_back({"model.layers.0.mlp.experts.1.up_proj.weight_packed", Dtype::U8, {1}, {std::byte{1}}});
  const MemorySource source(tensors);
  const Recognition recognition = recognize_source(source);
  ASSERT_EQ(recognition.unexplained.size(), 1u);
  EXPECT_EQ(recognition.problems.size(), 1u);
  TargetAnswers to;
  to.glu = contiguous();
  expect_error(
      ErrorCode::UnexplainedKey, [&] { plan_of(source, to); }, "weight_packed");
  // A copy leaves nothing behind.
  EXPECT_NO_THROW(plan_of(source, {}, {}, true));
}

// ---- layers of multi-token prediction ------------------------------------------------------------

TEST(MakePlan, MtpLayersFollowTheDecoderInSomeNamings) {
  ModelSpec model = model_of();
  model.num_hidden_layers = 3;
  model.blocks.push_back(model.blocks[0]);
  model.blocks[1].layer = 2;
  for (const i64 layer : {0, 1}) {
    model.blocks.push_back(model.blocks[0]);
    model.blocks.back().stack = "mtp";
    model.blocks.back().layer = layer;
  }
  const Spelling hf = spelled("hf:deepseek_v3", Experts::Indexed, split());
  const Spelling megatron = spelled("megatron", Experts::Grouped, interleaved(2));
  const auto has = [&](const Spelling& spelling, const std::string& name) {
    for (const MemoryTensor& tensor : build(model, spelling))
      if (tensor.name == name) return true;
    return false;
  };
  EXPECT_TRUE(has(hf, "model.layers.3.mlp.experts.0.up_proj.weight"));
  EXPECT_TRUE(has(hf, "model.layers.4.mlp.experts.2.up_proj.weight"));
  EXPECT_TRUE(has(megatron, "mtp.layers.1.transformer_layer.mlp.experts.linear_fc1.weight"));
  expect_converts(model, hf, megatron);
  expect_converts(model, megatron, hf);
  // A model from the hub has no record; its config.json says where the main stack ends.
  ModelHints hints;
  hints.model_type = "deepseek_v3";
  hints.num_hidden_layers = 3;
  const MemorySource hub(build(model, hf), hints);
  const Recognition recognition = recognize_source(hub);
  EXPECT_EQ(layer_label(recognition.blocks.back()), "mtp.1");
  const Converted there = convert(hub, recognition, options_for(model, megatron));
  EXPECT_TRUE(same_tensors(build(model, megatron), there.tensors));
  const MemorySource middle(there.tensors, {}, record_of(model, megatron));
  EXPECT_EQ(digest_of(middle), digest_of(hub));
  EXPECT_TRUE(same_tensors(hub.tensors(), convert(middle, recognize_source(middle), options_for(model, hf)).tensors));
}

// ---- scales -------------------------------------------------------------------------------------

ModelSpec scaled_model(i64 width, i64 hidden) {
  ModelSpec model = model_of(width, hidden, Dtype::F8_E4M3);
  model.blocks[0].scales = true;
  return model;
}

TEST(MakePlan, ScalesMoveWithTheirRows) {
  const ModelSpec model = scaled_model(512, 130);
  const std::vector<Glu> arrangements{split(), contiguous(), interleaved(128), interleaved(256), interleaved(512)};
  for (const Experts experts : {Experts::Indexed, Experts::Grouped})
    for (const Glu& glu : arrangements) {
      expect_converts(model, spelled("hf:deepseek_v3", Experts::Indexed, split()),
                      spelled("hf:deepseek_v3", experts, glu));
      expect_converts(model, spelled("hf:deepseek_v3", experts, glu),
                      spelled("hf:deepseek_v3", Experts::Indexed, split()));
    }
}

TEST(MakePlan, ScalesOfOneExpertAndOfTransposedExperts) {
  ModelSpec model = scaled_model(256, 130);
  for (const i64 experts : {1, 2}) {
    model.blocks[0].widths = widths(experts, 256);
    for (const std::string naming : {"hf:deepseek_v3", "hf:llama4_text"})
      for (const Experts grouping : {Experts::Indexed, Experts::Grouped})
        for (const Glu& glu : {contiguous(), interleaved(128)}) {
          expect_converts(model, spelled("hf:deepseek_v3", Experts::Indexed, split()), spelled(naming, grouping, glu));
          expect_converts(model, spelled(naming, grouping, glu), spelled("hf:deepseek_v3", Experts::Indexed, split()));
        }
  }
}

TEST(MakePlan, RefusesBlocksThatWouldShareAScale) {
  const MemorySource source = make_source(scaled_model(256, 128), spelled("hf:deepseek_v3", Experts::Indexed, split()));
  TargetAnswers to;
  for (const i64 k : {1, 2, 32, 64}) {
    to.glu = interleaved(k);
    expect_error(
        ErrorCode::NotExact, [&] { plan_of(source, to); }, "scale");
  }
  // The last scale of gate would cover the first rows of up.
  const MemorySource odd = make_source(scaled_model(192, 128), spelled("hf:deepseek_v3", Experts::Indexed, split()));
  to.glu = contiguous();
  expect_error(ErrorCode::NotExact, [&] { plan_of(odd, to); });
  to = {};
  to.experts = Experts::Grouped;
  EXPECT_NO_THROW(plan_of(odd, to));
}

TEST(MakePlan, MegatronHoldsNoScales) {
  const MemorySource source = make_source(scaled_model(256, 128), spelled("hf:deepseek_v3", Experts::Indexed, split()));
  TargetAnswers to;
  to.naming = "megatron";
  to.scope = Scope::Experts;
  expect_error(
      ErrorCode::NoSpelling, [&] { plan_of(source, to); }, "scale");
}

// ---- no gate ------------------------------------------------------------------------------------

TEST(MakePlan, ExpertsWithoutAGate) {
  ModelSpec model = model_of(6, 4);
  model.blocks[0].gated = false;
  model.blocks[0].bias = true;
  for (const std::string a : {"hf:nemotron_h", "megatron", "hf:mixtral"})
    for (const std::string b : {"hf:nemotron_h", "megatron", "hf:gpt_oss"})
      for (const Experts experts : {Experts::Indexed, Experts::Grouped}) {
        expect_converts(model, spelled(a, Experts::Indexed, {Glu::Kind::None, 0}),
                        spelled(b, experts, {Glu::Kind::None, 0}));
        expect_converts(model, spelled(b, experts, {Glu::Kind::None, 0}),
                        spelled(a, Experts::Indexed, {Glu::Kind::None, 0}));
      }
  const MemorySource source = make_source(model, spelled("megatron", Experts::Indexed, {Glu::Kind::None, 0}));
  TargetAnswers to;
  to.glu = interleaved(2);
  expect_error(ErrorCode::NotGated, [&] { plan_of(source, to); });
}

// ---- shards and notes -----------------------------------------------------------------------------

TEST(MakePlan, ShardsKeepLayersTogetherAndWithinTheirSize) {
  ModelSpec model = model_of(8, 8);
  for (const i64 layer : {1, 2, 10}) {
    model.blocks.push_back(model.blocks[0]);
    model.blocks.back().layer = layer;
  }
  model.others = other_tensors();
  const MemorySource source = make_source(model, spelled("hf:qwen3_moe", Experts::Indexed, split()));
  for (const i64 limit : {1, 255, 256, 257, 1000, 5000, 1 << 30}) {
    PlanOptions options;
    options.to.naming = "megatron";
    options.to.scope = Scope::Experts;
    options.to.glu = contiguous();
    options.max_shard_bytes = limit;
    const Plan plan = make_plan(source.inventory(), recognize_source(source), options);
    check_plan(source.inventory(), plan);
    expect_good_shards(source.inventory(), plan, limit);
    u32 shard_of_layer_2 = 0;
    for (const OutputTensor& output : plan.outputs) {
      if (output.name.starts_with("decoder.layers.2.")) shard_of_layer_2 = std::max(shard_of_layer_2, output.shard);
    }
    for (const OutputTensor& output : plan.outputs)
      if (output.name.starts_with("decoder.layers.10.")) {
        EXPECT_GE(output.shard, shard_of_layer_2) << "layers are not in the order people count";
      }
  }
}

TEST(MakePlan, SaysWhatOtherSoftwareWillNotRead) {
  const MemorySource source = make_source(model_of(), spelled("hf:qwen3_moe", Experts::Indexed, split()));
  TargetAnswers to;
  to.experts = Experts::Grouped;
  to.glu = interleaved(2);
  const Plan foreign = plan_of(source, to);
  EXPECT_TRUE(foreign.notes.empty());
  EXPECT_NE(foreign.foreign_order.find("expects contiguous"), std::string::npos) << foreign.foreign_order;
  to.glu = contiguous();
  EXPECT_EQ(plan_of(source, to).foreign_order, "");
}

}  // namespace
}  // namespace glu_ckpt
