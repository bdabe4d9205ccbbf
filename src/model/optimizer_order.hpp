#pragma once
/// Checks whether an optimizer's master weights confirm the orders of gate and up rows that were answered for a
/// checkpoint. Pure, but for the last function: which stored row belongs to which, and what a sample of rows says about
/// the orders that somebody claimed.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Orders of a fused FC1 [2F, H]; split is as good as contiguous.
struct OptimizerOrders {
  Glu weights;
  Glu states;
};

/// The stored row, 0 to 2F, of the states that belongs to stored row `row` of the weights.
i64 matching_row(const OptimizerOrders& orders, i64 intermediate, i64 row);

/// Stored rows of the weights that tell orders apart, ascending: some spread evenly, and each K that divides F, where
/// interleaved:K has its first up row.
std::vector<i64> sampled_rows(i64 intermediate);

/// Returns all orders in which FC1s whose F are multiples of `width` can stand: contiguous, and interleaved:K where K
/// divides it. Without the one that has blocks of `width` rows, which is contiguous if all are of one width.
std::vector<Glu> possible_orders(i64 width);

/// The findings of a sample of rows about the orders that were claimed.
struct OrderEvidence {
  enum class Kind {
    /// No order explains the states, or too many do.
    None,
    Agrees,
    /// The states do not fit as claimed, and do fit in `states` or if the weights stand in `weights`.
    Contradicts,
  };
  Kind kind = Kind::None;
  /// The only order of the states that fits the weights in the order claimed.
  std::optional<Glu> states;
  /// The only order of the weights that fits the states in the order claimed.
  std::optional<Glu> weights;
};

/// `agrees` tells whether all sampled rows fit in some orders; it is asked about the claimed ones first, and about
/// others only where those do not fit.
OrderEvidence judge_orders(const OptimizerOrders& claimed, const std::vector<Glu>& possible_weights,
                           const std::vector<Glu>& possible_states,
                           const std::function<bool(const OptimizerOrders&)>& agrees);

/// The findings of check_optimizer_order().
struct OptimizerCheck {
  /// FC1s of one layer, routed or shared, whose sampled rows all fit.
  i64 agreeing = 0;
  /// Rows compared in those.
  i64 rows = 0;
  /// FC1s without evidence: stale or differently rounded masters, rows that are all alike.
  i64 undecided = 0;
  /// FC1s that were not looked at, since the bound of bytes to read was reached.
  i64 unread = 0;
};

/// Compares, in the first and the last expert of each FC1 whose order is known, a sample of rows of the weights with
/// the master weights rounded to their dtype. A model weight is its master weight rounded, so where rows do not fit in
/// the orders claimed but do in exactly one other, an answer is wrong. Never chooses an order, and never takes missing
/// evidence for a contradiction. `option_prefix` is SourceAnswers::option_prefix. Throws GluConflict.
OptimizerCheck check_optimizer_order(const Model& model, const std::string& option_prefix);

}  // namespace glu_ckpt
