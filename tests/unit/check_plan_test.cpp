/// The proof of a plan is tested by planting faults in good plans.

#include <fmt/format.h>

#include <functional>

#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

struct Planned {
  Inventory inventory;
  Plan plan;
};

Planned planned(const Spelling& from, const Spelling& to, i64 hidden = 5) {
  ModelSpec model;
  BlockSpec block;
  block.hidden = hidden;
  block.widths = widths(3, 12);
  block.bias = true;
  block.dtype = Dtype::U32;
  model.blocks.push_back(block);
  model.others = other_tensors();
  const MemorySource source = make_source(model, from);
  return {source.inventory(), make_plan(source.inventory(), recognize_source(source), options_for(model, to))};
}

std::vector<Planned> plans() {
  const Spelling indexed{"megatron", Experts::Indexed, Experts::Indexed, contiguous(), split()};
  const Spelling grouped{"megatron", Experts::Grouped, Experts::Grouped, interleaved(4), split()};
  const Spelling uneven{"megatron", Experts::Grouped, Experts::Grouped, interleaved(6), split()};
  const Spelling turned{"hf:gpt_oss", Experts::Grouped, Experts::Grouped, interleaved(1), split()};
  return {planned(indexed, grouped), planned(grouped, uneven),  planned(uneven, turned),
          planned(turned, indexed),  planned(indexed, indexed), planned(grouped, turned, 1)};
}

void insert_move(Plan& plan, std::size_t at, const Move& move) {
  plan.moves.insert(plan.moves.begin() + static_cast<std::ptrdiff_t>(at), move);
  for (std::size_t& first : plan.first_move)
    if (first > at) ++first;
}

void erase_move(Plan& plan, std::size_t at) {
  plan.moves.erase(plan.moves.begin() + static_cast<std::ptrdiff_t>(at));
  for (std::size_t& first : plan.first_move)
    if (first > at) --first;
}

/// Applies `fault` to each move of each plan in turn; false: it does not apply there.
void expect_caught(const std::function<bool(Plan&, std::size_t)>& fault) {
  int faults = 0;
  for (const Planned& good : plans()) {
    EXPECT_NO_THROW(check_plan(good.inventory, good.plan));
    for (std::size_t m = 0; m < good.plan.moves.size(); ++m) {
      Plan bad = good.plan;
      if (!fault(bad, m)) continue;
      SCOPED_TRACE(
          fmt::format("move {} of {} into '{}'", m, bad.moves.size(), good.plan.outputs[good.plan.moves[m].dst].name));
      expect_error(ErrorCode::PlanUnproved, [&] { check_plan(good.inventory, bad); });
      ++faults;
    }
  }
  EXPECT_GT(faults, 5);
}

TEST(CheckPlan, DroppedMove) {
  expect_caught([](Plan& plan, std::size_t m) {
    erase_move(plan, m);
    return true;
  });
}

TEST(CheckPlan, DoubledMove) {
  expect_caught([](Plan& plan, std::size_t m) {
    insert_move(plan, m, Move(plan.moves[m]));
    return true;
  });
}

TEST(CheckPlan, TensorThatTheSourceLacks) {
  for (const Planned& good : plans())
    for (const std::size_t beyond : {std::size_t{0}, std::size_t{1} << 40}) {
      Plan bad = good.plan;
      bad.moves.front().src = good.inventory.tensors.size() + beyond;
      expect_error(ErrorCode::PlanUnproved, [&] { check_plan(good.inventory, bad); });
    }
}

TEST(CheckPlan, ShiftedOffsets) {
  for (const i64 shift : {-4, -1, 1, 4, 60}) {
    expect_caught([&](Plan& plan, std::size_t m) {
      plan.moves[m].dst_offset += shift;
      return true;
    });
    expect_caught([&](Plan& plan, std::size_t m) {
      plan.moves[m].src_offset += shift;
      return true;
    });
  }
}

TEST(CheckPlan, WrongSteps) {
  for (std::size_t level = 0; level < 4; ++level) {
    for (const i64 change : {-4, 4}) {
      bool applied = false;
      for (const Planned& good : plans())
        for (std::size_t m = 0; m < good.plan.moves.size(); ++m) {
          if (good.plan.moves[m].dims[level].count == 1) continue;
          applied = true;
          Plan bad = good.plan;
          bad.moves[m].dims[level].dst_step += change;
          expect_error(ErrorCode::PlanUnproved, [&] { check_plan(good.inventory, bad); });
          bad = good.plan;
          bad.moves[m].dims[level].src_step += change;
          expect_error(ErrorCode::PlanUnproved, [&] { check_plan(good.inventory, bad); });
        }
      EXPECT_TRUE(applied || level == 3);
    }
  }
}

TEST(CheckPlan, WrongRunsAndCounts) {
  for (const i64 change : {-1, 1})
    expect_caught([&](Plan& plan, std::size_t m) {
      plan.moves[m].run_bytes += change;
      return true;
    });
  for (const i64 change : {-1, 1})
    expect_caught([&](Plan& plan, std::size_t m) {
      if (plan.moves[m].dims[0].count == 1) return false;
      plan.moves[m].dims[0].count += change;
      return true;
    });
}

/// As many bytes as there should be, but one byte twice and another never.
TEST(CheckPlan, EqualCountsDoNotHideAnOverlap) {
  expect_caught([](Plan& plan, std::size_t m) {
    const std::size_t t = plan.moves[m].dst;
    if (plan.first_move[t + 1] - plan.first_move[t] < 2 || m == plan.first_move[t]) return false;
    const Move& first = plan.moves[plan.first_move[t]];
    if (first.bytes() != plan.moves[m].bytes()) return false;
    plan.moves[m].dst_offset = first.dst_offset;
    plan.moves[m].dims = first.dims;
    plan.moves[m].run_bytes = first.run_bytes;
    return true;
  });
}

TEST(CheckPlan, WrongSourceTensor) {
  expect_caught([](Plan& plan, std::size_t m) {
    plan.moves[m].src = plan.moves[m].src == 0 ? 1 : 0;
    return true;
  });
}

/// The loops of a lattice that folds in every dimension but one.
TEST(CheckPlan, NegativeAndZeroSteps) {
  Inventory inventory;
  inventory.tensors.push_back({"a", Dtype::U8, {8}, 8, 0, 0});
  Plan plan;
  plan.outputs.push_back({"a", Dtype::U8, {8}, 8, 0, 0});
  plan.first_move = {0, 1};
  Move move;
  move.run_bytes = 4;
  move.dims[0] = {2, 4, 0};
  plan.moves = {move};
  expect_error(
      ErrorCode::PlanUnproved, [&] { check_plan(inventory, plan); }, "'a'");
  plan.moves[0].dims[0] = {2, 4, -4};
  plan.moves[0].dst_offset = -4;
  expect_error(ErrorCode::PlanUnproved, [&] { check_plan(inventory, plan); });
  plan.moves[0].dst_offset = 0;
  plan.moves[0].dims[0] = {2, 4, 4};
  EXPECT_NO_THROW(check_plan(inventory, plan));
}

TEST(CheckPlan, WhatIsZeroIsMadeOfNothing) {
  Inventory inventory;
  inventory.tensors = {{"a", Dtype::U8, {4}, 4, 0, 0}};
  Plan plan;
  plan.outputs = {{"a", Dtype::U8, {4}, 4, 0, 0, "a"}, {"b", Dtype::U8, {2}, 2, 0, 4, ""}};
  Move move;
  move.run_bytes = 4;
  plan.moves = {move};
  plan.first_move = {0, 1, 1};
  expect_error(
      ErrorCode::PlanUnproved, [&] { check_plan(inventory, plan); }, "'b'");
  plan.zeros = {1};
  check_plan(inventory, plan);
  plan.zeros = {0, 1};
  expect_error(
      ErrorCode::PlanUnproved, [&] { check_plan(inventory, plan); }, "'a' is to be zero");
}

}  // namespace
}  // namespace glu_ckpt
