#pragma once
/// Reading memory and nothing else: what a kernel that streams weights can reach at most.

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// Words that plain_read() leaves its sums in.
inline constexpr i64 kReadSums = 1024;

/// Reads `bytes` from `data`, each once, and adds the exclusive or of their 32-bit words to `sums` [kReadSums], by
/// exclusive or too: that of all sums is that of all words. `data` is aligned to 16 bytes and `bytes` a multiple of 16.
/// Asynchronous on `stream`, allocates nothing. Throws Usage, DeviceFailed.
void plain_read(const void* data, i64 bytes, u32* sums, GpuStream stream);

}  // namespace glu_ckpt
