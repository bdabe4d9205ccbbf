/// Which row belongs to which, by the index map written out, and what evidence is made of it.

#include "model/optimizer_order.hpp"

#include <algorithm>
#include <set>

#include "support/position_model.hpp"

namespace glu_ckpt {
namespace {

using namespace support;
using Kind = OrderEvidence::Kind;

/// Logical rows, gate 0 to F and up F to 2F, as they stand: I[p] = C[h*F + b*k + o].
std::vector<i64> stored_order(const Glu& glu, i64 f) {
  const i64 k = glu.kind == Glu::Kind::Interleaved ? glu.block_rows : f;
  std::vector<i64> rows;
  for (i64 p = 0; p < 2 * f; ++p) rows.push_back(p / k % 2 * f + p / (2 * k) * k + p % k);
  return rows;
}

const std::vector<i64> kWidths{1, 2, 7, 8, 12, 36, 64};

TEST(OptimizerOrder, MatchingRowsHoldTheSameLogicalRow) {
  for (const i64 f : kWidths)
    for (const Glu& weights : possible_orders(f))
      for (const Glu& states : possible_orders(f)) {
        const std::vector<i64> a = stored_order(weights, f);
        const std::vector<i64> b = stored_order(states, f);
        for (i64 row = 0; row < 2 * f; ++row)
          ASSERT_EQ(a[static_cast<std::size_t>(row)],
                    b[static_cast<std::size_t>(matching_row({weights, states}, f, row))])
              << to_string(weights) << " " << to_string(states) << " F " << f << " row " << row;
      }
}

TEST(OptimizerOrder, PossibleOrdersAreAllAndEachOnce) {
  EXPECT_EQ(possible_orders(12), (std::vector<Glu>{contiguous(), interleaved(1), interleaved(2), interleaved(3),
                                                   interleaved(4), interleaved(6)}));
  EXPECT_EQ(possible_orders(1), std::vector<Glu>{contiguous()});
  EXPECT_EQ(possible_orders(7), (std::vector<Glu>{contiguous(), interleaved(1)}));
}

TEST(OptimizerOrder, TheSampleTellsAllOrdersApart) {
  for (const i64 f : kWidths) {
    const std::vector<i64> rows = sampled_rows(f);
    EXPECT_TRUE(std::ranges::is_sorted(rows));
    EXPECT_EQ(rows.front(), 0);
    EXPECT_EQ(rows.back(), 2 * f - 1);
    const std::vector<Glu> orders = possible_orders(f);
    for (const Glu& fixed : orders) {
      std::set<std::vector<i64>> by_states, by_weights;
      for (const Glu& other : orders) {
        std::vector<i64> of_states, of_weights;
        for (const i64 row : rows) {
          of_states.push_back(matching_row({fixed, other}, f, row));
          of_weights.push_back(matching_row({other, fixed}, f, row));
        }
        by_states.insert(of_states);
        by_weights.insert(of_weights);
      }
      EXPECT_EQ(by_states.size(), orders.size()) << "F " << f;
      EXPECT_EQ(by_weights.size(), orders.size()) << "F " << f;
    }
  }
}

/// Evidence about a checkpoint that stands in `truth`, all of whose rows differ.
OrderEvidence judge(const OptimizerOrders& claimed, const OptimizerOrders& truth, i64 f) {
  const auto agrees = [&](const OptimizerOrders& orders) {
    return std::ranges::all_of(sampled_rows(f),
                               [&](i64 row) { return matching_row(orders, f, row) == matching_row(truth, f, row); });
  };
  return judge_orders(claimed, possible_orders(f), possible_orders(f), agrees);
}

TEST(OptimizerOrder, EveryClaimOfOneWrongOrderIsContradicted) {
  for (const i64 f : {8, 12, 36})
    for (const Glu& weights : possible_orders(f))
      for (const Glu& states : possible_orders(f))
        for (const Glu& wrong : possible_orders(f)) {
          EXPECT_EQ(judge({weights, states}, {weights, states}, f).kind, Kind::Agrees);
          if (wrong == states || wrong == weights) continue;
          const OrderEvidence of_states = judge({weights, wrong}, {weights, states}, f);
          EXPECT_EQ(of_states.kind, Kind::Contradicts);
          EXPECT_EQ(of_states.states, states);
          const OrderEvidence of_weights = judge({wrong, states}, {weights, states}, f);
          EXPECT_EQ(of_weights.kind, Kind::Contradicts);
          EXPECT_EQ(of_weights.weights, weights);
        }
}

TEST(OptimizerOrder, SplitIsAsGoodAsContiguous) {
  EXPECT_EQ(judge({split(), split()}, {contiguous(), contiguous()}, 8).kind, Kind::Agrees);
  EXPECT_EQ(judge({split(), split()}, {contiguous(), interleaved(2)}, 8).states, interleaved(2));
}

TEST(OptimizerOrder, WhatIsNoEvidence) {
  const OptimizerOrders claimed{contiguous(), contiguous()};
  const std::vector<Glu> orders = possible_orders(8);
  const auto none = [](const OptimizerOrders&) { return false; };
  EXPECT_EQ(judge_orders(claimed, orders, orders, none).kind, Kind::None);
  EXPECT_EQ(judge_orders(claimed, {}, {}, none).kind, Kind::None);
  // Two other orders fit: neither is known to be the true one.
  const auto two = [](const OptimizerOrders& asked) {
    return asked.states == interleaved(2) || asked.states == interleaved(4);
  };
  EXPECT_EQ(judge_orders(claimed, orders, orders, two).kind, Kind::None);
  const auto one = [](const OptimizerOrders& asked) { return asked.states == interleaved(2); };
  EXPECT_EQ(judge_orders(claimed, orders, orders, one).states, interleaved(2));
  // What two tensors hold cannot be told otherwise.
  EXPECT_EQ(judge_orders(claimed, orders, {split()}, one).kind, Kind::None);
}

}  // namespace
}  // namespace glu_ckpt
