#pragma once
/// Data to measure with. Never zeros: bits that do not change draw less power, and kernels run faster on them than they
/// ever will on weights.

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// `count` bf16 values at `data`, about normal around 0 with this deviation; the same ones for the same seed. `data` is
/// aligned to 16 bytes and `count` a multiple of 8. Asynchronous on `stream`. Throws Usage, DeviceFailed.
void random_fill_bf16(void* data, i64 count, float deviation, u32 seed, GpuStream stream);

}  // namespace glu_ckpt
