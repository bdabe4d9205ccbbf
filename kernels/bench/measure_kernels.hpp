#pragma once
/// The kernels that others are measured against, and the data that they are measured with.

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// The words that plain_read() leaves its sums in.
inline constexpr i64 kReadSums = 1024;

/// Reads memory and does nothing else, which is the most that a kernel that streams weights can reach: `bytes` from
/// `data`, each once. Adds the exclusive or of their 32-bit words to `sums` [kReadSums], by exclusive or too: that of
/// all sums is that of all words. `data` is aligned to 16 bytes and `bytes` a multiple of 16. Asynchronous on `stream`,
/// allocates nothing. Throws Usage, DeviceFailed.
void plain_read(const void* data, i64 bytes, u32* sums, GpuStream stream);

/// Writes `count` bf16 values to `data`, about normal around 0 with this deviation; the same ones for the same seed.
/// They are never all zeros: bits that do not change draw less power, and kernels run faster on them than on weights.
/// `data` is aligned to 16 bytes and `count` a multiple of 8. Asynchronous on `stream`. Throws Usage, DeviceFailed.
void random_fill_bf16(void* data, i64 count, float deviation, u32 seed, GpuStream stream);

/// SwiGLU as a kernel of its own, between two grouped products, is what fusing it into the first one is measured
/// against: y [rows, F] = (a s(a)) u p of z [rows, 2F], bf16, whose columns alternate between `block_cols` of a and as
/// many of u; p = probs [rows] is rounded to bf16 first. Computed in fp32 with the fast exponential, rounded once.
/// block_cols is a multiple of 8 and divides F; z and y are aligned to 16 bytes. Asynchronous on `stream`, allocates
/// nothing. Throws Usage, DeviceFailed.
void plain_swiglu(const void* z, const float* probs, i64 rows, i64 width, i64 block_cols, void* y, GpuStream stream);

}  // namespace glu_ckpt
