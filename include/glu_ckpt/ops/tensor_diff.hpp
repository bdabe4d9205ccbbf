#pragma once
/// Compares two tensors: how many elements differ, which is the first, and by how much they differ.

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// The result of comparing a with b, element by element. Bits decide what differs: -0 differs from 0, and a NaN from a
/// NaN with another payload. The values are of F64, F32, F16 and BF16 only; elements of other dtypes are bits alone,
/// and for them everything from max_abs on is 0.
struct DiffStats {
  i64 elements = 0;
  /// Elements whose bits differ.
  i64 differing = 0;
  /// Index of the first of them; -1 where there is none.
  i64 first = -1;
  /// Largest |a - b|; elements where either is a NaN do not count. Infinity where one is infinite and the other is
  /// not the same infinity, and for F64 also where the difference is beyond double.
  double max_abs = 0;
  /// Largest |a - b| / |a|, of the same elements: 0 where a = b (0 and -0 included), infinity where a is 0 or |a - b|
  /// is infinite.
  double max_rel = 0;
  /// Elements that are a NaN in exactly one, and in both, whatever their bits.
  i64 nan_in_one = 0;
  i64 nan_in_both = 0;

  bool operator==(const DiffStats&) const = default;
};

/// Compares `count` elements in device memory. Allocates a few KiB on the stream and synchronises it, so it cannot be
/// captured in a graph. Differences and quotients are rounded as IEEE doubles and maxima are exact, so the result is
/// the same on every run, device and host.
/// Throws Usage for a negative count and for null or misaligned pointers, NotSupported for dtypes below a byte,
/// ShapeOverflow, NoMemory, NoDevice, DeviceFailed.
DiffStats diff_stats(const void* a, const void* b, i64 count, Dtype dtype, GpuStream stream);

/// Does the same in host memory, on one thread, in every build.
DiffStats diff_stats_host(const void* a, const void* b, i64 count, Dtype dtype);

/// Makes `total` the statistics of its elements with those of `next` behind them, for tensors compared in pieces.
void append(DiffStats& total, const DiffStats& next);

}  // namespace glu_ckpt
