#pragma once
/// Which block of a quantized weight each stored scale is for: read off dtypes and shapes, which never leave a choice.

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

struct MatrixExtents {
  i64 rows = 0;
  i64 cols = 0;
};

/// DeepSeek-V3's FP8: one scale for 128 x 128 weights.
inline constexpr ScaleGrid kFp8Blocks{128, 128};
/// MXFP8: one power of two, a byte, for 32 weights of a row or of a column. Padded as TransformerEngine keeps them in
/// memory, which is also how its GEMM-swizzled scales are shaped; what stands in a checkpoint under these names is not
/// swizzled (ModelOpt, compressed-tensors and slime write rows).
inline constexpr ScaleGrid kMxGrids[] = {{1, 32}, {32, 1}, {1, 32, 128, 4}, {32, 1, 4, 128}};

/// The extents of the scales of a weight; extents padded to what is stored; both in one.
MatrixExtents scale_extents(const ScaleGrid& grid, const MatrixExtents& weight);
MatrixExtents padded(const ScaleGrid& grid, const MatrixExtents& scales);
MatrixExtents stored_extents(const ScaleGrid& grid, const MatrixExtents& weight);

/// Returns whether the dtypes are those of an MXFP8 weight and its scales.
bool can_be_mx(Dtype weight, Dtype scale);
/// Returns whether `scale` has the dtype and shape of MXFP8 scales of `weight`.
bool is_mx_scale(const TensorRef& weight, const TensorRef& scale);

/// Returns the grid of scales whose last two axes are one expert's; kFp8Blocks where they do not fit MXFP8.
ScaleGrid scale_grid(const TensorRef& weight_ref, const TensorRef& scale, const MatrixExtents& weight, Axes axes);

/// Returns whether gate and up lie in one tensor, and this is one of them.
bool shares_tensor(const ExpertBlock& block, const Matrix& matrix);
/// Rows of padding behind a matrix; those behind gate and up in one tensor (`shared`) count as the gate's.
i64 padding_rows(const Matrix& matrix, bool shared);

}  // namespace glu_ckpt
