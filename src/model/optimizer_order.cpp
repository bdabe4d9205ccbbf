#include "model/optimizer_order.hpp"

#include <algorithm>

namespace glu_ckpt {
namespace {

i64 block_rows(const Glu& glu, i64 intermediate) {
  return glu.kind == Glu::Kind::Interleaved ? glu.block_rows : intermediate;
}

/// Returns all divisors of n >= 1, ascending.
std::vector<i64> divisors(i64 n) {
  std::vector<i64> found;
  for (i64 d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    found.push_back(d);
    if (d != n / d) found.push_back(n / d);
  }
  std::ranges::sort(found);
  return found;
}

/// Gate and up as two tensors are the halves of a contiguous FC1.
Glu plain(const Glu& glu) { return glu.kind == Glu::Kind::Split ? Glu{Glu::Kind::Contiguous, 0} : glu; }

std::optional<Glu> only_one(const std::vector<Glu>& found) {
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

}  // namespace

i64 matching_row(const OptimizerOrders& orders, i64 intermediate, i64 row) {
  const i64 from = block_rows(orders.weights, intermediate);
  const i64 to = block_rows(orders.states, intermediate);
  const i64 half = row / from % 2;
  const i64 logical = row / (2 * from) * from + row % from;
  return logical / to * 2 * to + half * to + logical % to;
}

std::vector<i64> sampled_rows(i64 intermediate) {
  constexpr i64 kSpread = 8;
  std::vector<i64> rows = divisors(intermediate);
  for (i64 i = 0; i < kSpread; ++i) rows.push_back(i * (2 * intermediate - 1) / (kSpread - 1));
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

std::vector<Glu> possible_orders(i64 width) {
  std::vector<Glu> orders{{Glu::Kind::Contiguous, 0}};
  for (const i64 k : divisors(width))
    if (k < width) orders.push_back({Glu::Kind::Interleaved, k});
  return orders;
}

OrderEvidence judge_orders(const OptimizerOrders& claimed, const std::vector<Glu>& possible_weights,
                           const std::vector<Glu>& possible_states,
                           const std::function<bool(const OptimizerOrders&)>& agrees) {
  OrderEvidence evidence;
  if (agrees(claimed)) {
    evidence.kind = OrderEvidence::Kind::Agrees;
    return evidence;
  }
  std::vector<Glu> states;
  std::vector<Glu> weights;
  for (const Glu& other : possible_states)
    if (plain(other) != plain(claimed.states) && agrees({claimed.weights, other})) states.push_back(other);
  for (const Glu& other : possible_weights)
    if (plain(other) != plain(claimed.weights) && agrees({other, claimed.states})) weights.push_back(other);
  evidence.states = only_one(states);
  evidence.weights = only_one(weights);
  if (evidence.states || evidence.weights) evidence.kind = OrderEvidence::Kind::Contradicts;
  return evidence;
}

}  // namespace glu_ckpt
