#pragma once
/// Experts as Python has them: grouped tensors, or one tensor for each expert.

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/ops/grouped_mlp.hpp"

namespace glu_ckpt::python {

/// One kind of tensor of all experts, dense and row-major: one address for all, or one each; none where it is not
/// there.
struct ExpertStack {
  std::vector<std::int64_t> addresses;
  Dtype dtype = Dtype::BF16;
  /// Of one expert; a bias is [rows, 1].
  i64 rows = 0;
  i64 cols = 1;

  bool is_there() const { return !addresses.empty(); }
};

/// FC1 has gate and up rows, interleaved in blocks of `block_rows`; 0 for all gate rows before all up rows.
struct ExpertStacks {
  ExpertStack fc1, fc2, fc1_bias, fc2_bias;
  i64 experts = 0;
  i64 block_rows = 0;
};

/// The experts, whose shapes are for check_mlp() to judge. Throws NotDivisible for rows of FC1 that the blocks do not
/// divide.
std::vector<ExpertWeights> experts_of(const ExpertStacks& stacks, bool gated);

struct ActivationConstants {
  std::optional<double> alpha, limit, offset;
};
/// With the program's defaults. Throws as choose_activation() does, so also for constants that it does not have.
Activation activation_of(const std::string& kind, const ActivationConstants& constants);

}  // namespace glu_ckpt::python
