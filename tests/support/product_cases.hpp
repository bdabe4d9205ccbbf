#pragma once
/// Weights and the factors that are added to them: position-coded ones, of every dtype, with and without DoRA's scales,
/// in shapes that are whole for a kernel and that are not; and what the CPU makes of them, one element after the other.

#include <string>
#include <vector>

#include "core/product_lines.hpp"

namespace glu_ckpt::support {

struct ProductCase {
  Merging merging;
  Dtype dtype = Dtype::BF16;
  i64 lines = 0;
  i64 cols = 0;
  i64 rank = 0;
  /// -1: none; else RowScales::step.
  i64 scales_step = -1;
  /// [lines, cols], [lines, rank], [rank, cols]; a number for each line or column.
  std::vector<std::byte> weights;
  std::vector<float> coefficients;
  std::vector<float> vectors;
  std::vector<float> scales;

  std::string describe() const;
  /// Lines of `stored`, which has the size of `weights`.
  std::vector<ProductLine> lines_of(std::vector<std::byte>& stored) const;
  ProductVectors product_vectors() const { return {vectors.data(), rank, cols}; }
  /// By add_product_one_by_one().
  std::vector<std::byte> expected() const;
};

std::vector<ProductCase> product_cases();

}  // namespace glu_ckpt::support
