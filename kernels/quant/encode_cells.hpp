#pragma once
/// Weights in device memory become codes and scales.

#include <cstddef>

#include "core/weight_device.hpp"
#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// Returns whether encode_cells() has a kernel for the batch. Two codes that share a byte need columns and cells that
/// are multiples of 16; elements are numbered with 32 bits.
constexpr bool takes_cells(const CellBatch& batch) {
  const Codes codes = batch.rule.codes;
  if (batch.rows * batch.cols >= i64{1} << 31) return false;
  if (codes == Codes::E4m3) return true;
  return (codes == Codes::E2m1 || codes == Codes::Int4) && batch.cols % 16 == 0 && batch.cell_cols % 16 == 0;
}

/// Writes the codes and scales of `weights`, all in device memory and aligned to 16 bytes, and sets `flag` where
/// WeightDevice::Place::encode() returns false; `flag` is 0 before. The bits are those of encode_row() and
/// cell_scales() (src/quant/encode_row.hpp). One launch, asynchronous on `stream`, which allocates nothing. Throws
/// DeviceFailed with the shape.
void encode_cells(const CellBatch& batch, const std::byte* weights, u32* flag, std::byte* codes, std::byte* scales,
                  GpuStream stream);

}  // namespace glu_ckpt
