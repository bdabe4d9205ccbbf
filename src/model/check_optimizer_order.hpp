#pragma once
/// Checks whether an optimizer's master weights confirm the orders of gate and up rows that were answered for a
/// checkpoint.

#include <string>

#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

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
