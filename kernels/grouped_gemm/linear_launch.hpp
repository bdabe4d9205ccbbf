#pragma once
/// The launch of the grouped linear layer's kernels, as its classes see it.

#include "glu_ckpt/ops/grouped_linear.hpp"
#include "kernels/grouped_gemm/linear_tiles.hpp"

namespace glu_ckpt {

inline constexpr i64 kMostLinearBlocks = (i64{1} << 28) - 1;

/// Operands of C[m, n] = sum over k of A[m, k] B[n, k], in device memory. By rows (TN, NN): A is [rows, k], B the
/// expert's matrix, C [rows, n]. By experts (NT): A is [rows, m], B is [rows, n], and C the expert's matrix.
struct LinearOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  /// One address per expert: of B by rows, of C by experts.
  const void* const* matrices = nullptr;
  ExpertTiles tiles;
  i32 num_experts = 0;
  /// m is 0 by rows, k is 0 by experts.
  i64 m = 0;
  i64 n = 0;
  i64 k = 0;
  /// Products by rows: says whether B's columns are k (TN) or n (NN).
  bool b_along_k = true;
  bool accumulate = false;
};

/// Returns the operands of one run. `table` holds one address per expert, of W or dW, where a kernel can read it.
LinearOperands linear_operands(const GroupedLinear& linear, const LinearRows& rows, const void* const* table,
                               const ExpertTiles& tiles);

/// Rows of a tile, for make_expert_tiles().
i32 linear_tile_rows(Dtype dtype, i64 rows, i64 num_experts);

/// Tiles of C at the most. Throws ShapeOverflow where a launch could not number them; so does the launch.
i64 linear_blocks(Dtype dtype, const LinearOperands& operands, i64 rows);

/// Readies the kernels of these operands on the current device, so that a launch can be captured.
void prepare_linear(Dtype dtype, const LinearOperands& operands);

/// Comes after make_expert_tiles() on the same stream. `wide` says that every row of every operand begins at a multiple
/// of 16 bytes. `c_dtype` is `dtype`, or F32 by experts.
void launch_linear(Dtype dtype, Dtype c_dtype, const LinearOperands& operands, i64 rows, bool wide, GpuStream stream);

}  // namespace glu_ckpt
