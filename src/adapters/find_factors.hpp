#pragma once
/// Finds which weights of a model the factors of an adapter change.

#include <optional>
#include <vector>

#include "adapters/read_factors.hpp"
#include "core/product_lines.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// How an adapter is merged.
struct MergeAnswers {
  /// As PEFT's safe merge does.
  bool two_roundings = false;
  PackedFiles files = PackedFiles::Told;
};

struct MergedMatrix {
  Matrix matrix;
  Factors factors;
  Merging merging = {};
  /// The tensor of DoRA's magnitudes, one for each row.
  std::optional<std::size_t> magnitudes = std::nullopt;
};

/// Returns the matrices of `model`, which are stored in `base`, with what the adapter adds to them, in order of their
/// tensors. Throws UnknownTensor for factors of what the model does not have,
/// SizeMismatch, NotSupported for codes, and what read_factors() throws.
std::vector<MergedMatrix> find_factors(const Source& base, const Recognition& model, const Source& adapter,
                                       const AdapterConfig& config, const MergeAnswers& answers);

}  // namespace glu_ckpt
