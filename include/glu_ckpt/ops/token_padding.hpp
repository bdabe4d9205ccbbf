#pragma once
/// Rows added behind each expert's tokens so that kernels of some recipes find as many as they want. The grouped MLP of
/// this library wants none; this is for tokens that come from or go to those that do.

#include <cstddef>
#include <span>
#include <vector>

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// The dtype that matrices are quantized to, of which only the block that a kernel takes at once counts.
enum class TokenRecipe {
  /// fp32, bf16, fp16.
  None,
  /// fp8 with one scale per tensor or per block of 128.
  Fp8,
  Mxfp8,
  Fp4,
};

/// Megatron's multiple of rows per expert: 256 for the op fuser or grouped tensors, whatever the recipe; else 32 for
/// MXFP8, 16 for other fp8, 128 for fp4 and 0, which is no padding.
i64 token_alignment(TokenRecipe recipe, bool grouped_tensor);

/// The rows of each expert, without and with padding. Experts without tokens get none.
struct TokenPadding {
  std::vector<i64> splits;
  /// Each split rounded up to a multiple of the alignment.
  std::vector<i64> padded_splits;
  /// Their sums.
  i64 rows = 0;
  i64 padded_rows = 0;
};

/// An alignment of 0 or 1 adds nothing. Throws Usage for negative numbers, with the number of the split; ShapeOverflow.
TokenPadding make_token_padding(std::span<const i64> splits, i64 alignment);

/// Copies tokens [rows, row_bytes], sorted by expert, to [padded_rows, row_bytes] with zeros behind each expert's. For
/// probabilities row_bytes is that of one of them. The two do not overlap. Throws Usage where the sizes are others.
void pad_rows(const TokenPadding& padding, std::span<const std::byte> rows, i64 row_bytes, std::span<std::byte> padded);
/// Copies the rows back, without the padding.
void unpad_rows(const TokenPadding& padding, std::span<const std::byte> padded, i64 row_bytes,
                std::span<std::byte> rows);

/// These do the same in device memory, asynchronous on `stream`, by copies and fills of the driver, two an expert.
/// They allocate no memory, and a graph can capture them, with these splits. Throws NoDevice, DeviceFailed,
/// ShapeOverflow.
void pad_rows_device(const TokenPadding& padding, const void* rows, i64 row_bytes, void* padded, GpuStream stream);
void unpad_rows_device(const TokenPadding& padding, const void* padded, i64 row_bytes, void* rows, GpuStream stream);

}  // namespace glu_ckpt
