#pragma once
/// The order of gate and up rows of an FC1 that is in memory, as a framework has it: weight or bias, of one expert or
/// of many, on the CPU or on a GPU.

#include <optional>

#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/output_buffer.hpp"

namespace glu_ckpt {

/// A change from contiguous (F gate rows, then F up rows) to interleaved:K (K gate rows, K up rows, ...), or back.
struct GluChange {
  /// K; divides F.
  i64 block_rows = 32;
  bool interleave = true;
  /// The axis of the 2F rows, from the end where negative. Absent: axis 1 of a tensor with three axes ([E, 2F, H]),
  /// axis 0 of one with fewer ([2F, H], [2F]). A grouped bias [E, 2F] has to say 1.
  std::optional<int> axis;
};

/// The means by which a change is run.
struct GluRun {
  /// Threads on the CPU; 0 for one per core that this process may run on.
  int jobs = 0;
  /// The stream on a GPU.
  GpuStream stream = nullptr;
};

/// Writes `in` to `out` in the other order. Both have one shape, dtype and device, are dense and row-major, and do not
/// overlap. On a GPU it is asynchronous and allocates nothing, so a graph can capture it. Throws Usage for shapes,
/// dtypes, devices and strides, NotDivisible where K does not divide F, NoDevice, DeviceFailed; nothing is written
/// then.
void change_glu_order(const TensorView& in, const TensorView& out, const GluChange& change, const GluRun& run);

/// Makes the change in the tensor's own memory. On a GPU it is asynchronous, and a graph can capture it; the first call
/// for new sizes uploads a table and waits for that alone. Throws as change_glu_order() does, and NoMemory.
void change_glu_order_in_place(const TensorView& tensor, const GluChange& change, const GluRun& run);

}  // namespace glu_ckpt
