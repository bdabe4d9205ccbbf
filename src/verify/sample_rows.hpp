#pragma once
/// Compares a sample of two models' bytes, where reading all of them would cost more than making one from the other.

#include <span>
#include <string>

#include "glu_ckpt/verify.hpp"

namespace glu_ckpt {

struct SampleLimits {
  /// Rows of matrices, and blocks of 4 KiB of other tensors, of all tensors together.
  i64 rows = 768;
  i64 bytes = i64{16} << 20;
};

struct Sample {
  /// The rows that were compared, and their bytes in each model.
  i64 rows = 0;
  i64 bytes = 0;
  /// The first row found that differs, for people; empty where all are equal.
  std::string difference;
};

/// For each of b's `tensors`, compares the first row, the last row, and some rows chosen by `seed`, up to the limits.
/// If there are too many tensors for the limits, `seed` chooses the tensors, too. Each side is read by its own
/// placements. In a matrix that is stored transposed, the first elements of a row stand for the row. Both models must
/// consist of the same matrices and tensors (first_unlike()).
Sample sample_rows(const Model& a, const Model& b, std::span<const std::size_t> tensors, const Backend& backend,
                   const ExecuteOptions& options, u64 seed, const SampleLimits& limits = {});

}  // namespace glu_ckpt
