#pragma once
/// Splits from the host into device memory, as kernel arguments: unlike a copy it needs neither page-locked memory nor
/// that the host's stay until it is done, in a captured graph as well.

#include <span>

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// One launch for every 256 splits.
void store_splits(std::span<const i64> splits, i64* on_device, GpuStream stream);

}  // namespace glu_ckpt
