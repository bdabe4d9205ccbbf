#pragma once
/// What every grouped linear layer asks of its arguments.

#include <span>
#include <vector>

#include "glu_ckpt/grouped_linear.hpp"

namespace glu_ckpt {

/// Shapes, dtypes and the addresses of matrices. Throws Usage, NotSupported, ShapeOverflow.
void check_linear(const GroupedLinear& linear);
/// The addresses of rows, which a run of no rows does without. Throws Usage, ShapeOverflow.
void check_linear_rows(const GroupedLinear& linear, const LinearRows& rows);

/// Splits in host memory. Throws Usage.
void check_host_splits(const GroupedLinear& linear, i64 rows, std::span<const i64> splits);

/// One address per expert, of W or dW; after check_linear().
std::vector<const void*> matrix_addresses(const GroupedLinear& linear);

/// One product C[m, n] = sum over k of A[m, k] B[n, k] per expert, as it is made of x, dy and W.
struct LinearShape {
  /// Columns of a row of A's and B's tensors, as they lie: the features.
  i64 n = 0;
  /// Number of products of an element; 0 of WeightGrad, where it is the expert's rows.
  i64 k = 0;
  /// Rows of C; 0 of those whose rows are the expert's.
  i64 m = 0;
};

constexpr LinearShape linear_shape(const GroupedLinear& linear) {
  switch (linear.product) {
    case LinearProduct::Forward: return {linear.out_features, linear.in_features, 0};
    case LinearProduct::InputGrad: return {linear.in_features, linear.out_features, 0};
    case LinearProduct::WeightGrad: return {linear.in_features, 0, linear.out_features};
  }
  return {};
}

/// Whether every row of every operand begins at a multiple of 16 bytes.
bool is_wide(const GroupedLinear& linear, const LinearRows& rows, std::span<const void* const> matrices);

/// Dtype of what is written.
constexpr Dtype output_dtype(const GroupedLinear& linear) {
  return linear.product == LinearProduct::WeightGrad ? linear.grad_dtype : linear.dtype;
}

}  // namespace glu_ckpt
