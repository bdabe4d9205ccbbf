#pragma once
/// Stored matrices made dense on the device, for kernels that want rows one after the other.

#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/grouped_mlp.hpp"

namespace glu_ckpt {

/// `count` matrices [rows, cols] of 16-bit elements, in device memory and of any layout, one after the other to `out`
/// with `pitch` elements from one row to the next. Elements between cols and pitch are not written. Asynchronous.
void copy_dense(const StoredMatrix* matrices, i64 count, i64 rows, i64 cols, void* out, i64 pitch, GpuStream stream);

/// Of `count` biases [rows, 1] of any layout and dtype the fp32 values [count, pitch]; those of a bias that is not
/// there and those behind its rows are 0.
void widen_biases(const StoredMatrix* biases, i64 count, i64 rows, float* out, i64 pitch, GpuStream stream);

}  // namespace glu_ckpt
