#pragma once
/// verify() with the items that it compared.

#include "exec/items.hpp"
#include "glu_ckpt/verify.hpp"

namespace glu_ckpt {

struct ComparedModels {
  Verdict verdict;
  /// The items that were read, with the sums of their leaves.
  std::vector<Item> left;
  std::vector<Item> right;
};

/// Returns whether two models are stored as the same tensors: names, dtypes and shapes.
bool same_tensors(const Model& a, const Model& b);

/// Hashes both models, or a subset of what they hold.
ComparedModels compare_models(const Model& a, const Model& b, const Backend& backend, const ExecuteOptions& options,
                              const VerifySubset& subset);

}  // namespace glu_ckpt
