#pragma once
/// The grouped MLP on a framework's tensors, with results in memory that the caller may provide.

#include <functional>
#include <string>
#include <vector>

#include "glu_ckpt/ops/device_forward.hpp"
#include "glu_ckpt/ops/grouped_mlp.hpp"

namespace glu_ckpt {

/// A tensor that somebody else owns, as its framework describes it.
struct TensorView {
  std::byte* data = nullptr;
  Dtype dtype = Dtype::BF16;
  std::vector<i64> shape;
  /// Elements from one index to the next, one per extent; empty where the tensor is dense and row-major.
  std::vector<i64> strides;
  /// "cpu", or "cuda:N"; "cuda" is "cuda:0".
  std::string device = "cpu";
  bool requires_grad = false;
};

/// Says whether the elements follow one another in row-major order. As for PyTorch, strides of extents of 1 mean
/// nothing, and a tensor without elements is contiguous.
bool is_contiguous(const TensorView& tensor);

/// Checks a buffer that results are written to, in this order: its shape, dtype and device, that it is contiguous, and
/// that it does not require a gradient. The first that is not so is an Error(Usage) with both sides and what to do. It
/// looks at the description alone.
void check_output_buffer(const TensorView& buffer, const std::vector<i64>& shape, Dtype dtype,
                         const std::string& device);

/// Memory of so many bytes on a device, not initialised; null where there are 0 bytes. Whoever calls owns it.
using AllocateOutput = std::function<std::byte*(i64 bytes, const std::string& device)>;

/// Returns the tensor that results are written to: `buffer`, checked as above, or where it is null a new tensor by
/// `allocate`. It has the address of the buffer, and requires no gradient. Throws Usage, ShapeOverflow, NoMemory where
/// the allocation gives nothing.
TensorView validate_or_alloc(const TensorView* buffer, const std::vector<i64>& shape, Dtype dtype,
                             const std::string& device, const AllocateOutput& allocate);

/// The tensors of a run of a grouped MLP, all on one device and contiguous.
struct MlpTensors {
  /// [..., H], of the compute dtype: the tokens, sorted by expert. All axes but the last together are T.
  TensorView x;
  /// [E], I64.
  TensorView splits;
  /// [T], F32.
  TensorView probs;
  /// Shaped as x; null for one of its own.
  const TensorView* out = nullptr;
};

/// Checks dtype, device, contiguity, shape and address of x, then of splits, then of probs. Returns T. Looks at the
/// descriptions alone, so nothing is launched before. Throws Usage with the name, both sides and what to do.
i64 check_mlp_tensors(const GroupedMlp& mlp, const MlpTensors& tensors, const std::string& device);

/// grouped_mlp_host() on tensors of device "cpu". Returns the output, of which rows behind the last split keep what
/// they held (those of a new one hold anything). The values are the same whoever provides the memory. Throws as
/// check_mlp_tensors(), validate_or_alloc() and grouped_mlp_host() do, and Usage where the buffer overlaps x, splits or
/// probs; nothing is written or allocated then.
TensorView grouped_mlp_into(const GroupedMlp& mlp, const MlpTensors& tensors, const AllocateOutput& allocate, int jobs);

/// Does the same on a GPU: `run` was made of `mlp`, and x says which device. Does not wait for `stream`; what is wrong
/// with the splits themselves is for run.check_splits() to say.
TensorView grouped_mlp_into(const DeviceGroupedMlp& run, const GroupedMlp& mlp, const MlpTensors& tensors,
                            const AllocateOutput& allocate, GpuStream stream);

}  // namespace glu_ckpt
