#pragma once
/// SwiGLU as a kernel of its own, between two grouped products: what fusing it into the first one is measured against.

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// y [rows, F] = (a s(a)) u p of z [rows, 2F], bf16, whose columns alternate between `block_cols` of a and as many of
/// u; p = probs [rows] is rounded to bf16 first. Computed in fp32 with the fast exponential, rounded once. block_cols
/// is a multiple of 8 and divides F; z and y are aligned to 16 bytes. Asynchronous on `stream`, allocates nothing.
/// Throws Usage, DeviceFailed.
void plain_swiglu(const void* z, const float* probs, i64 rows, i64 width, i64 block_cols, void* y, GpuStream stream);

}  // namespace glu_ckpt
