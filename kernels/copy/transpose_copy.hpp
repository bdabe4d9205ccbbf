#pragma once
/// Copies that turn a matrix of single elements, as between gpt-oss ([E, H, 2F], gate and up in turn) and everyone
/// else ([E, 2F, H]).

#include <optional>

#include "glu_ckpt/ops/cuda.hpp"
#include "plan/fold_moves.hpp"

namespace glu_ckpt {

/// Elements a side of the smallest tile, of the path for any step and address.
constexpr int kLeastTransposeTile = 32;

/// Elements that are consecutive on one side. On the other side they lie `low_step` bytes apart, and `high_step` from
/// one group of low_count to the next: gate and up in turn are two of the low loop.
struct TransposeAxis {
  i64 low_count = 1;
  i64 high_count = 1;
  i64 low_step = 0;
  i64 high_step = 0;

  i64 count() const { return low_count * high_count; }
  bool operator==(const TransposeAxis&) const = default;
};

/// A copy of elements whose rows are consecutive in the source along `across` and in the target along `down`.
struct TransposeShape {
  i64 element_bytes = 0;
  /// Consecutive in the source; steps are the target's.
  TransposeAxis across;
  /// Consecutive in the target; steps are the source's.
  TransposeAxis down;
  /// The loops that are left; run_bytes is not used.
  CopyShape outer;
};

/// The shape as a transpose, where its runs are single elements of 1, 2, 4 or 8 bytes, both axes are long enough for
/// tiles to pay, and one launch can number places and tiles; otherwise nothing, and strided_copy() is the kernel. Pure.
std::optional<TransposeShape> find_transpose(const CopyShape& shape);

/// Says whether rows on both sides can be read and written 16 bytes at a time. Pure.
bool transposes_in_vectors(const TransposeShape& shape, std::span<const CopyPair> pairs);

/// Executes the transposes in device memory. Asynchronous on `stream`, allocates nothing. Its oracle is
/// strided_copy_ref(). Throws DeviceFailed with the shape.
void transpose_copy(const TransposeShape& shape, std::span<const CopyPair> pairs, GpuStream stream);

}  // namespace glu_ckpt
