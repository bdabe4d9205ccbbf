#include "plan/plan_bytes.hpp"

#include <gtest/gtest.h>

#include <random>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

/// No field has its default, and no two numbers are alike.
Plan every_field() {
  Plan plan;
  plan.outputs = {{"a", Dtype::BF16, {2, 3}, 12, 0, 0, "from a"},
                  {"b.\xc3\xa9", Dtype::U64, {}, 8, 0, 16, ""},
                  {"", Dtype::BOOL, {0, 7, 9}, 0, 1, 5, "from c"}};
  plan.moves = {{21, 0, 31, 41, {{{51, 52, -53}, {54, -55, 56}, {57, 58, 59}, {60, 61, 62}}}, 63},
                {22, 0, 32, 42, {}, 64},
                {23, 1, 33, 43, {{{71, 72, 73}, {1, 0, 0}, {1, 0, 0}, {1, 0, 0}}}, 65}};
  plan.first_move = {0, 2, 3, 3};
  plan.num_shards = 2;
  plan.data_phases = {8, 4088};
  plan.dropped = {4, 81};
  plan.computes = {{6, 0, ComputeOp::AddOne}};
  plan.repeats = {1};
  plan.zeros = {2};
  plan.cuts = {{9, 640}};
  plan.experts = {{Experts::Grouped, Experts::Indexed, {Glu::Kind::Interleaved, 32}, true}, {}};
  plan.from = {"hf:x", "indexed", {Glu::Kind::Interleaved, 32}, "option", Glu{Glu::Kind::Split, 0}, std::nullopt};
  plan.to = {"megatron", "grouped", {Glu::Kind::None, 0}, "naming", std::nullopt, Glu{Glu::Kind::Contiguous, 0}};
  plan.rest = "hf";
  plan.bytes = 91;
  plan.foreign_order = "another";
  plan.notes = {"one", "", "three"};
  return plan;
}

void expect_equal(const OutputTensor& a, const OutputTensor& b) {
  const auto& [name, dtype, shape, bytes, shard, offset, from] = a;
  EXPECT_EQ(name, b.name);
  EXPECT_EQ(dtype, b.dtype);
  EXPECT_EQ(shape, b.shape);
  EXPECT_EQ(bytes, b.bytes);
  EXPECT_EQ(shard, b.shard);
  EXPECT_EQ(offset, b.offset);
  EXPECT_EQ(from, b.from);
}

void expect_equal(const Move& a, const Move& b) {
  const auto& [src, dst, src_offset, dst_offset, dims, run_bytes] = a;
  EXPECT_EQ(src, b.src);
  EXPECT_EQ(dst, b.dst);
  EXPECT_EQ(src_offset, b.src_offset);
  EXPECT_EQ(dst_offset, b.dst_offset);
  EXPECT_EQ(dims, b.dims);
  EXPECT_EQ(run_bytes, b.run_bytes);
}

void expect_equal(const LayoutAnswers& a, const LayoutAnswers& b) {
  const auto& [naming, experts, glu, glu_source, shared_glu, optimizer_glu] = a;
  EXPECT_EQ(naming, b.naming);
  EXPECT_EQ(experts, b.experts);
  EXPECT_EQ(glu, b.glu);
  EXPECT_EQ(glu_source, b.glu_source);
  EXPECT_EQ(shared_glu, b.shared_glu);
  EXPECT_EQ(optimizer_glu, b.optimizer_glu);
}

void expect_equal(const WrittenExperts& a, const WrittenExperts& b) {
  const auto& [experts, bias_experts, glu, fused] = a;
  EXPECT_EQ(experts, b.experts);
  EXPECT_EQ(bias_experts, b.bias_experts);
  EXPECT_EQ(glu, b.glu);
  EXPECT_EQ(fused, b.fused);
}

/// Does not compile once a Plan has gained a field that it does not compare.
void expect_equal(const Plan& a, const Plan& b) {
  const auto& [outputs, moves, first_move, num_shards, data_phases, dropped, computes, repeats, zeros, cuts, experts,
               from, to, rest, foreign_order, bytes, notes] = a;
  ASSERT_EQ(outputs.size(), b.outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) expect_equal(outputs[i], b.outputs[i]);
  ASSERT_EQ(moves.size(), b.moves.size());
  for (std::size_t i = 0; i < moves.size(); ++i) expect_equal(moves[i], b.moves[i]);
  EXPECT_EQ(first_move, b.first_move);
  EXPECT_EQ(num_shards, b.num_shards);
  EXPECT_EQ(data_phases, b.data_phases);
  EXPECT_EQ(dropped, b.dropped);
  EXPECT_EQ(computes, b.computes);
  EXPECT_EQ(repeats, b.repeats);
  EXPECT_EQ(zeros, b.zeros);
  EXPECT_EQ(cuts, b.cuts);
  ASSERT_EQ(experts.size(), b.experts.size());
  for (std::size_t i = 0; i < experts.size(); ++i) expect_equal(experts[i], b.experts[i]);
  expect_equal(from, b.from);
  expect_equal(to, b.to);
  EXPECT_EQ(rest, b.rest);
  EXPECT_EQ(foreign_order, b.foreign_order);
  EXPECT_EQ(bytes, b.bytes);
  EXPECT_EQ(notes, b.notes);
}

void expect_carried(const Plan& plan) { expect_equal(plan, parse_plan_bytes(plan_bytes(plan))); }

TEST(PlanBytes, CarriesEveryField) {
  expect_carried(every_field());
  Plan none;
  none.first_move = {0};
  expect_carried(none);
}

TEST(PlanBytes, CarriesARealPlan) {
  ModelSpec model;
  BlockSpec block;
  block.widths = {8, 8, 8};
  block.bias = true;
  model.blocks.push_back(block);
  model.others = other_tensors();
  const Spelling from{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), split()};
  const Spelling to{"megatron", Experts::Grouped, Experts::Grouped, interleaved(2), split()};
  const MemorySource source = make_source(model, from);
  const Plan plan = make_plan(source.inventory(), recognize_source(source), options_for(model, to));
  const Plan carried = parse_plan_bytes(plan_bytes(plan));
  expect_equal(plan, carried);
  check_plan(source.inventory(), carried);
}

TEST(PlanBytes, RefusesEveryTruncationAndWhatFollows) {
  std::vector<std::byte> bytes = plan_bytes(every_field());
  for (std::size_t length = 0; length < bytes.size(); ++length)
    expect_error(ErrorCode::Io, [&] { parse_plan_bytes({bytes.data(), length}); });
  bytes.push_back(std::byte{0});
  expect_error(
      ErrorCode::Io, [&] { parse_plan_bytes(bytes); }, "goes on");
}

/// Whatever the bytes: an Error, or a plan that gives the same bytes again.
TEST(PlanBytes, TakesNoHarmFromWrongBytes) {
  const std::vector<std::byte> good = plan_bytes(every_field());
  std::mt19937 random(1);
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const unsigned value : {0U, 1U, 0x7fU, 0xffU, static_cast<unsigned>(random() % 256)}) {
      std::vector<std::byte> bytes = good;
      bytes[at] = static_cast<std::byte>(value);
      try {
        EXPECT_EQ(plan_bytes(parse_plan_bytes(bytes)), bytes) << at;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::Io);
      }
    }
  }
}

TEST(PlanBytes, RefusesNumbersThatDisagree) {
  const auto refuses = [](const auto& spoil, const std::string& word) {
    Plan plan = every_field();
    spoil(plan);
    expect_error(
        ErrorCode::Io, [&] { parse_plan_bytes(plan_bytes(plan)); }, word);
  };
  refuses([](Plan& plan) { plan.first_move.clear(); }, "where the moves of each output begin");
  refuses([](Plan& plan) { plan.first_move.pop_back(); }, "where the moves of each output begin");
  refuses([](Plan& plan) { plan.first_move = {1, 2, 3, 3}; }, "to no output");
  refuses([](Plan& plan) { plan.first_move = {0, 2, 3, 4}; }, "to no output");
  refuses([](Plan& plan) { plan.first_move = {0, 3, 2, 3}; }, "out of order");
  refuses([](Plan& plan) { plan.num_shards = 1; }, "in no shard");
  refuses([](Plan& plan) { plan.moves[1].dst = 3; }, "a move to no output");
}

}  // namespace
}  // namespace glu_ckpt
