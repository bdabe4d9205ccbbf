#pragma once
/// The inner products of a CPU's grouped MLP.

#include <cstddef>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Partial sums of one inner product.
inline constexpr i64 kDotLanes = 16;

/// Columns rounded up to whole rounds of the lanes.
constexpr i64 padded_cols(i64 cols) { return (cols + kDotLanes - 1) / kDotLanes * kDotLanes; }

/// out[t * out_step + r] = sum over k < cols of x[t * x_step + k] * w[r][k], for t < tokens and r < rows.
struct DotProducts {
  const float* x = nullptr;
  i64 x_step = 0;
  i64 tokens = 0;
  /// The address of each row of weights; its elements are of `dtype`, one behind the other, at any address.
  const std::byte* const* w = nullptr;
  /// BF16, F16 or F32.
  Dtype dtype = Dtype::F32;
  i64 rows = 0;
  /// A multiple of kDotLanes.
  i64 cols = 0;
  float* out = nullptr;
  i64 out_step = 0;
};

/// Makes the sums in the order that grouped_mlp_host() promises.
void dot_products(const DotProducts& dots);

/// Does the same with the shortest registers, which every processor has.
void dot_products_plain(const DotProducts& dots);

}  // namespace glu_ckpt
