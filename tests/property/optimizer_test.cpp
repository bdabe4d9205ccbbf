/// The optimizer's states go where their weights go, in Megatron's and in FSDP's keys, stacked or by layer.

#include <fmt/format.h>

#include <algorithm>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

const std::vector<std::string> kStates{"param", "exp_avg", "exp_avg_sq"};

/// Tensors beside the experts whose keys do or do not number the layers.
std::vector<MemoryTensor> attention(bool numbered, i64 layers) {
  const auto tensor = [](const std::string& name, std::vector<i64> shape) {
    MemoryTensor made{name, Dtype::U8, std::move(shape), {}};
    made.bytes.resize(static_cast<std::size_t>(tensor_bytes(made.dtype, made.shape)), std::byte{7});
    return made;
  };
  if (!numbered) return {tensor("decoder.layers.self_attention.linear_qkv.weight", {layers, 5})};
  return {tensor("decoder.layers.0.self_attention.linear_qkv.weight", {5})};
}

ModelSpec model_of(i64 layers, i64 width, bool numbered) {
  ModelSpec model;
  for (i64 layer = 0; layer < layers; ++layer) {
    BlockSpec block;
    block.layer = layer;
    block.hidden = 5;
    block.widths = widths(3, width);
    block.bias = true;
    model.blocks.push_back(block);
    block.set = ExpertSet::Shared;
    block.widths = {2 * width};
    block.bias = false;
    model.blocks.push_back(block);
  }
  add_states(model, kStates);
  model.others = attention(numbered, layers);
  return model;
}

bool is_grouped_dist(const Spelling& spelling) {
  return spelling.naming == "megatron-dist" && spelling.experts == Experts::Grouped;
}

std::vector<Spelling> spellings() {
  constexpr Experts kIndexed = Experts::Indexed;
  constexpr Experts kGrouped = Experts::Grouped;
  std::vector<Spelling> all{{"megatron", kIndexed, kIndexed, contiguous(), contiguous()},
                            {"megatron", kGrouped, kGrouped, interleaved(2), interleaved(4)},
                            {"megatron", kGrouped, kIndexed, split(), split()},
                            {"megatron-sequential", kIndexed, kIndexed, interleaved(4), contiguous()},
                            {"megatron-dist", kIndexed, kIndexed, split(), split()},
                            {"megatron-dist", kGrouped, kGrouped, contiguous(), interleaved(8)},
                            {"megatron-dist", kGrouped, kGrouped, interleaved(4), contiguous()},
                            {"hf:deepseek_v3", kIndexed, kIndexed, split(), split()}};
  Spelling differs = all[0];
  differs.optimizer_glu = interleaved(4);
  all.push_back(differs);
  differs = all[5];
  differs.optimizer_glu = interleaved(2);
  all.push_back(differs);
  return all;
}

TEST(Optimizer, StatesGoWithTheirWeights) {
  for (const bool numbered : {true, false}) {
    const ModelSpec model = model_of(2, 8, numbered);
    for (Spelling from : spellings())
      for (Spelling to : spellings()) {
        // Both end in the order that is asked for.
        to.optimizer_glu.reset();
        from.stacked = to.stacked = false;
        if (is_grouped_dist(from)) from.stacked = !numbered;
        if (is_grouped_dist(to)) to.stacked = !numbered;
        // Shared experts of a stacked model, of which only the routed ones become indexed, would stay stacked.
        if (from.stacked && to.naming == from.naming && !to.stacked) continue;
        expect_converts(model, from, to);
      }
  }
}

/// full.safetensors of the reference: states of the weights of FC1 alone, in 32-row blocks.
TEST(Optimizer, StatesOfFc1Alone) {
  ModelSpec model = model_of(2, 64, true);
  for (BlockSpec& block : model.blocks) block.fc1_weights_only = block.state != "model";
  const Spelling indexed{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), contiguous()};
  const Spelling grouped{"megatron", Experts::Grouped, Experts::Grouped, interleaved(32), interleaved(32)};
  expect_converts(model, indexed, grouped);
  expect_converts(model, grouped, indexed);
}

/// optimizer.state.<model key>.<state>, under another scope than the weights'.
TEST(Optimizer, KeysOfFsdp) {
  ModelSpec model = model_of(2, 8, true);
  for (BlockSpec& block : model.blocks) {
    if (block.state == "model") {
      block.before = "model.module.";
    } else {
      block.before = "optimizer.state.module.module.module.";
      block.after = "." + block.state;
    }
  }
  const Spelling halves{"megatron", Experts::Indexed, Experts::Indexed, split(), split()};
  const Spelling fused{"megatron", Experts::Grouped, Experts::Grouped, interleaved(4), contiguous()};
  expect_converts(model, halves, fused);
  expect_converts(model, fused, halves);
}

TEST(Optimizer, AloneInACheckpoint) {
  ModelSpec model = model_of(2, 8, true);
  std::erase_if(model.blocks, [](const BlockSpec& block) { return block.state == "model"; });
  const Spelling from{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), contiguous()};
  expect_converts(model, from, {"megatron", Experts::Grouped, Experts::Grouped, interleaved(2), contiguous()});
}

/// Expert-parallel shards of Megatron's legacy format, one folder each, whose router counts all experts.
TEST(Optimizer, LegacyShards) {
  ModelSpec model;
  for (const std::string shard : {"mp_rank_00_000/", "mp_rank_00_001/"}) {
    ModelSpec one = model_of(1, 8, true);
    for (BlockSpec& block : one.blocks) {
      block.before = shard + block.before;
      model.blocks.push_back(block);
    }
    MemoryTensor router{shard + "decoder.layers.0.mlp.router.weight", Dtype::U8, {6, 5}, {}};
    router.bytes.resize(30);
    model.others.push_back(router);
  }
  const Spelling from{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), contiguous()};
  const Spelling to{"megatron", Experts::Indexed, Experts::Indexed, interleaved(4), interleaved(8)};
  expect_converts(model, from, to);
  expect_converts(model, to, from);
  // 8 rows of F in a shard: K = 16 would divide only the whole.
  const MemorySource source = make_source(model, from);
  PlanOptions options;
  options.to.glu = interleaved(16);
  expect_error(
      ErrorCode::NotDivisible, [&] { make_plan(source.inventory(), recognize_source(source), options); }, "shard");
  model.others[0].shape = {7, 5};
  model.others[0].bytes.resize(35);
  expect_error(
      ErrorCode::ExpertMissing, [&] { recognize_source(make_source(model, from)); }, "no multiple");
}

// ---- another order than the weights' -------------------------------------------------------------

struct OtherOrder {
  ModelSpec model = model_of(1, 8, true);
  Spelling from{"megatron",   Experts::Indexed, Experts::Indexed,
                contiguous(), contiguous(),     std::optional(interleaved(4))};
  MemorySource source{build(model, from)};

  static SourceAnswers answers(std::optional<Glu> optimizer) {
    SourceAnswers said;
    said.glu = contiguous();
    said.shared_glu = contiguous();
    said.optimizer_glu = optimizer;
    return said;
  }
};

TEST(Optimizer, AnswersAboutAnotherOrder) {
  const OtherOrder given;
  const Recognition found = recognize_source(given.source, OtherOrder::answers(interleaved(4)));
  EXPECT_FALSE(found.optimizer_glu_assumed);
  EXPECT_EQ(found.layout.glu, contiguous());
  EXPECT_EQ(found.layout.optimizer_glu, interleaved(4));
  for (const Glu& wanted : {interleaved(4), interleaved(2), contiguous()}) {
    Spelling to = given.from;
    to.glu = wanted;
    to.optimizer_glu.reset();
    const Converted converted = convert(given.source, found, options_for(given.model, to));
    EXPECT_TRUE(same_tensors(build(given.model, to), converted.tensors));
    EXPECT_EQ(converted.plan.to.optimizer_glu, wanted);
    EXPECT_TRUE(converted.plan.notes.empty());
  }
}

TEST(Optimizer, KeepKeepsBothOrders) {
  const OtherOrder given;
  const Recognition found = recognize_source(given.source, OtherOrder::answers(interleaved(4)));
  PlanOptions options;
  options.to.experts = Experts::Grouped;
  const Converted converted = convert(given.source, found, options);
  Spelling to = given.from;
  to.experts = to.bias_experts = Experts::Grouped;
  EXPECT_TRUE(same_tensors(build(given.model, to), converted.tensors));
  EXPECT_EQ(converted.plan.to.glu, contiguous());
  EXPECT_EQ(converted.plan.to.optimizer_glu, interleaved(4));
}

TEST(Optimizer, WhatIsAssumedIsSaid) {
  const OtherOrder given;
  const Recognition found = recognize_source(given.source, OtherOrder::answers(std::nullopt));
  EXPECT_TRUE(found.optimizer_glu_assumed);
  EXPECT_EQ(found.layout.optimizer_glu, contiguous());
  PlanOptions options;
  options.to.glu = interleaved(2);
  const Plan plan = make_plan(given.source.inventory(), found, options);
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_NE(plan.notes[0].find("--from-optimizer-glu"), std::string::npos);
  options.to = {};
  options.to.experts = Experts::Grouped;
  EXPECT_TRUE(make_plan(given.source.inventory(), found, options).notes.empty());
  // A record speaks of both.
  const Record record{{"glu", "contiguous"}, {"shared_glu", "contiguous"}};
  const MemorySource recorded(given.source.tensors(), {}, record);
  EXPECT_FALSE(recognize_source(recorded).optimizer_glu_assumed);
  EXPECT_EQ(recognize_source(recorded).layout.optimizer_glu, contiguous());
}

TEST(Optimizer, AnswersThatDisagree) {
  const OtherOrder given;
  const Record record{{"glu", "contiguous"}, {"shared_glu", "contiguous"}, {"optimizer_glu", "interleaved:4"}};
  const MemorySource source(given.source.tensors(), {}, record);
  EXPECT_EQ(recognize_source(source).layout.optimizer_glu, interleaved(4));
  expect_error(
      ErrorCode::GluConflict, [&] { recognize_source(source, OtherOrder::answers(contiguous())); }, "optimizer-glu");
  expect_error(
      ErrorCode::NotDivisible, [&] { recognize_source(given.source, OtherOrder::answers(interleaved(3))); },
      "optimizer-glu");
  const MemorySource invalid(given.source.tensors(), {}, {{"optimizer_glu", "shuffled"}});
  expect_error(ErrorCode::RecordInvalid, [&] { recognize_source(invalid); });
  // Without an answer about the states, only moves that keep FC1 whole are possible.
  SourceAnswers none;
  none.optimizer_glu = interleaved(4);
  const Recognition found = recognize_source(given.source, none);
  EXPECT_EQ(found.layout.glu.kind, Glu::Kind::Unknown);
  PlanOptions options;
  options.to.glu = contiguous();
  expect_error(
      ErrorCode::UnknownGlu, [&] { make_plan(given.source.inventory(), found, options); }, "--from-glu");
}

// ---- faults ---------------------------------------------------------------------------------------

TEST(Optimizer, AMisplacedRowOfAStateIsFound) {
  const ModelSpec model = model_of(2, 8, false);
  Spelling spelling{"megatron-dist", Experts::Grouped, Experts::Grouped, interleaved(4), contiguous()};
  spelling.stacked = true;
  const MemorySource good = make_source(model, spelling);
  std::vector<MemoryTensor> tensors = good.tensors();
  const auto victim = std::ranges::find(
      tensors, "optimizer.state.exp_avg.decoder.layers.mlp.experts.experts.linear_fc1.weight", &MemoryTensor::name);
  ASSERT_NE(victim, tensors.end());
  // Layer 1, expert 2: exchange two rows.
  const std::size_t row = 5 * 8;
  const auto at = [&](std::size_t r) {
    return victim->bytes.begin() + static_cast<std::ptrdiff_t>(((1 * 3 + 2) * 16 + r) * row);
  };
  std::swap_ranges(at(1), at(2), at(4));
  const MemorySource bad(tensors, {}, record_of(model, spelling));
  EXPECT_NE(to_string(digest_of(good)), to_string(digest_of(bad)));
  const Recognition a = recognize_source(good);
  const Recognition b = recognize_source(bad);
  const Verdict verdict = verify({&good, &a}, {&bad, &b}, *make_backend("cpu"), {});
  EXPECT_FALSE(verdict.equal);
  ASSERT_TRUE(verdict.first_difference);
  EXPECT_EQ(verdict.first_difference->state, "exp_avg");
  EXPECT_EQ(verdict.first_difference->layer, "1");
  EXPECT_EQ(verdict.first_difference->expert, 2);
  EXPECT_EQ(verdict.first_difference->role, "gate");
  EXPECT_EQ(verdict.first_difference->row, 1);
}

TEST(Optimizer, AStateReadInTheWrongOrderIsRecognized) {
  const ModelSpec model = model_of(2, 8, false);
  Spelling spelling{"megatron-dist", Experts::Grouped, Experts::Grouped, contiguous(), contiguous()};
  spelling.stacked = true;
  const MemorySource good = make_source(model, spelling);
  spelling.optimizer_glu = interleaved(2);
  const MemorySource other(build(model, spelling), {}, good.record());
  const Recognition a = recognize_source(good);
  const Recognition b = recognize_source(other);
  const Verdict verdict = verify({&good, &a}, {&other, &b}, *make_backend("cpu"), {});
  ASSERT_TRUE(verdict.first_difference);
  EXPECT_NE(verdict.first_difference->hint.find("interleaved:2"), std::string::npos) << verdict.first_difference->hint;
}

// ---- leaving it out -------------------------------------------------------------------------------

TEST(Optimizer, Drop) {
  ModelSpec model = model_of(2, 8, false);
  Spelling spelling{"megatron-dist", Experts::Grouped, Experts::Grouped, contiguous(), contiguous()};
  spelling.stacked = true;
  MemoryTensor bucket{"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_0.param", Dtype::F32, {2}, {}};
  bucket.bytes.resize(8);
  model.others.push_back(bucket);
  const MemorySource source = make_source(model, spelling);
  SourceAnswers drop;
  drop.drop_optimizer = true;
  const Recognition found = recognize_source(source, drop);
  EXPECT_EQ(found.layout.optimizer_glu, std::nullopt);
  EXPECT_TRUE(found.problems.empty());
  PlanOptions options;
  Converted kept = convert(source, found, options);
  model.others.pop_back();
  std::erase_if(model.blocks, [](const BlockSpec& block) { return block.state != "model"; });
  EXPECT_TRUE(same_tensors(build(model, spelling), kept.tensors));
  // The digest of what is kept is that of the output.
  const MemorySource target(kept.tensors, {}, record_of(model, spelling));
  EXPECT_EQ(to_string(digest_of(source, drop)), to_string(digest_of(target)));
  EXPECT_NE(to_string(digest_of(source, drop)), to_string(digest_of(source)));
  ASSERT_FALSE(kept.plan.dropped.empty());
  Plan forged = kept.plan;
  forged.dropped.pop_back();
  expect_error(ErrorCode::PlanUnproved, [&] { check_plan(source.inventory(), forged); });
  forged = kept.plan;
  forged.dropped.insert(forged.dropped.begin(), forged.moves[0].src);
  std::ranges::sort(forged.dropped);
  expect_error(ErrorCode::PlanUnproved, [&] { check_plan(source.inventory(), forged); });
}

TEST(Optimizer, BucketsStopAChangeOfLayout) {
  for (const std::string name :
       {"optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.bfloat16).bucket_idx_0.param",
        "0.(torch.bfloat16, torch.float32).exp_avg", "optimizer.optimizer.state.7.exp_avg",
        "optimizer.fp32_from_fp16_params.0.7"}) {
    ModelSpec model = model_of(1, 8, true);
    std::erase_if(model.blocks, [](const BlockSpec& block) { return block.state != "model"; });
    MemoryTensor bucket{name, Dtype::F32, {2}, {}};
    bucket.bytes.resize(8);
    model.others.push_back(bucket);
    const Spelling spelling{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), contiguous()};
    const MemorySource source = make_source(model, spelling);
    const Recognition found = recognize_source(source);
    ASSERT_EQ(found.problems.size(), 1u);
    EXPECT_NE(found.problems[0].find("--optimizer drop"), std::string::npos);
    PlanOptions options;
    options.to.glu = interleaved(2);
    expect_error(
        ErrorCode::OptimizerBuckets, [&] { make_plan(source.inventory(), found, options); }, name);
    options.to = {};
    options.to.experts = Experts::Grouped;
    expect_error(
        ErrorCode::OptimizerBuckets, [&] { make_plan(source.inventory(), found, options); },
        "--dist-ckpt-optim-fully-reshardable");
    // What changes nothing may carry them along.
    options.to = {};
    options.force = true;
    EXPECT_TRUE(same_tensors(source.tensors(), convert(source, found, options).tensors));
  }
}

}  // namespace
}  // namespace glu_ckpt
