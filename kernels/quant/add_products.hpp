#pragma once
/// Products of an adapter's factors are added to weights in device memory.

#include <cstddef>

#include "core/product_lines.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// DoRA's numbers, by which sums of weights and products are multiplied: none, one for each line, or one for each
/// column.
enum class ProductScales { None, OfLines, OfColumns };

/// Lines of a weight, `cols` elements of `dtype` (BF16, F16 or F32) each.
struct ProductBatch {
  Merging merging;
  Dtype dtype = Dtype::BF16;
  i64 lines = 0;
  i64 cols = 0;
  i64 rank = 0;
  ProductScales scales = ProductScales::None;

  /// Elements from one line, or one vector, to the next: each begins where 16 bytes do.
  i64 pitch() const { return (cols + 7) / 8 * 8; }
  i64 weight_bytes() const { return lines * pitch() * dtype_bits(dtype) / 8; }
  i64 coefficient_bytes() const { return lines * rank * i64{sizeof(float)}; }
  i64 vector_bytes() const { return rank * pitch() * i64{sizeof(float)}; }
  i64 scales_bytes() const {
    if (scales == ProductScales::None) return 0;
    return (scales == ProductScales::OfLines ? lines : pitch()) * i64{sizeof(float)};
  }
};

/// In device memory, each aligned to 16 bytes: weights [lines, pitch], coefficients [lines, rank], vectors
/// [rank, pitch], and the numbers of `scales`. What stands in a line behind its columns may be anything.
struct ProductBuffers {
  std::byte* weights = nullptr;
  const float* coefficients = nullptr;
  const float* vectors = nullptr;
  const float* scales = nullptr;
};

/// Returns whether add_products() has a kernel for the batch: elements are numbered with 31 bits.
constexpr bool takes_products(const ProductBatch& batch) {
  constexpr i64 kMost = i64{1} << 31;
  const bool is_float = batch.dtype == Dtype::BF16 || batch.dtype == Dtype::F16 || batch.dtype == Dtype::F32;
  return is_float && batch.cols < kMost && batch.lines < kMost / batch.pitch() && batch.rank < kMost / batch.pitch() &&
         batch.lines < kMost / (batch.rank + 1);
}

/// Adds, with the bits of add_product() (src/adapters/add_product.hpp), and sets `flag` where a sum is NaN; `flag` is 0
/// before. One launch, asynchronous on `stream`, which allocates nothing. Throws DeviceFailed with the shape.
void add_products(const ProductBatch& batch, const ProductBuffers& buffers, u32* flag, GpuStream stream);

}  // namespace glu_ckpt
