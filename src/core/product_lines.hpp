#pragma once
/// Products of an adapter's factors and the lines of weights that they are added to.

#include <cstddef>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// How a product becomes part of a weight.
struct Merging {
  /// alpha / r.
  float scale = 1;
  /// Round it to the weight's dtype before it is added, as PEFT's safe merge and its packed experts do.
  bool rounds_product = false;
};

/// DoRA's numbers by which sums of weights and products are multiplied: element c by values[c * step].
struct RowScales {
  const float* values = nullptr;
  i64 step = 0;
};

/// A line of a weight: where it is stored, and its coefficients, one for each of the vectors that its lines share.
struct ProductLine {
  const float* coefficients = nullptr;
  std::byte* data = nullptr;
  RowScales scales = {};
};

/// The vectors of lines: vector j from values + j * stride on.
struct ProductVectors {
  const float* values = nullptr;
  i64 rank = 0;
  i64 stride = 0;
};

}  // namespace glu_ckpt
