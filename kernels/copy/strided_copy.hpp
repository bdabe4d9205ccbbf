#pragma once
/// Copies of runs at regular steps: what a plan move becomes on a device.

#include "glu_ckpt/ops/cuda.hpp"
#include "plan/fold_moves.hpp"

namespace glu_ckpt {

/// Most pairs that one launch takes; they travel as kernel arguments, of which CUDA 12.1 and later allow 32,764 bytes.
constexpr int kMaxPairsPerLaunch = 1024;

/// Copies every run of every pair, in device memory. Asynchronous on `stream`, allocates nothing. Words are as wide
/// as copy_word_bytes() finds. Throws DeviceFailed with the shape.
void strided_copy(const CopyBatch& batch, GpuStream stream);

/// Copies in host memory, a byte at a time, from the definition of a move; shares no index arithmetic with the kernel
/// or with fold_moves().
void strided_copy_ref(std::span<const Move> moves, std::span<const std::byte* const> srcs,
                      std::span<std::byte* const> dsts);

}  // namespace glu_ckpt
