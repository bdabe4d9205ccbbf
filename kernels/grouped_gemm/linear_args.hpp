#pragma once
/// The checks of arguments that all grouped linear layers share.

#include <span>
#include <vector>

#include "glu_ckpt/ops/grouped_linear.hpp"

namespace glu_ckpt {

inline bool is_aligned(const void* data, i64 bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

/// Checks shapes, dtypes and the addresses of matrices. Throws Usage, NotSupported, ShapeOverflow.
void check_linear(const GroupedLinear& linear);
/// Checks the addresses of rows, which a run of no rows does without. Throws Usage, ShapeOverflow.
void check_linear_rows(const GroupedLinear& linear, const LinearRows& rows);

/// Checks splits in host memory. Throws Usage.
void check_host_splits(const GroupedLinear& linear, i64 rows, std::span<const i64> splits);

/// Returns one address per expert, of W or dW. check_linear() comes first.
std::vector<const void*> matrix_addresses(const GroupedLinear& linear);

/// Says whether every row of every operand that the product has begins at a multiple of 16 bytes.
bool is_wide(const GroupedLinear& linear, const LinearRows& rows, std::span<const void* const> matrices);

/// Dtype of what is written.
constexpr Dtype output_dtype(const GroupedLinear& linear) {
  return linear.product == LinearProduct::WeightGrad ? linear.grad_dtype : linear.dtype;
}

}  // namespace glu_ckpt
