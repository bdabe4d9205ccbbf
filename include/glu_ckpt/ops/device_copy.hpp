#pragma once
/// Layout changes of tensors that are already in device memory. Asynchronous on `stream`; nothing is allocated.

#include <cstddef>
#include <memory>
#include <span>

#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {

/// Executes plan moves between device buffers: interleave, de-interleave, stack, unstack, split, join, transpose, of
/// any element size and shape. `srcs[move.src]` and `dsts[move.dst]` are the device addresses of the tensors' first
/// bytes. Sources and destinations must not overlap. Moves that differ by constant steps only, such as those of the
/// experts of one tensor, share a launch; so do up to 1024 experts in tensors of their own. Fast where every run, step
/// and address is a multiple of 16 bytes; other sizes give the same bytes more slowly.
/// Throws DeviceFailed with the shape; Usage where an index has no address.
void device_copy(std::span<const Move> moves, std::span<const std::byte* const> srcs, std::span<std::byte* const> dsts,
                 GpuStream stream);

/// FC1 weights or biases that change their GLU order where they stand.
struct InPlaceGlu {
  i64 experts = 1;
  /// Bytes from one expert to the next; ignored for one expert.
  i64 expert_step = 0;
  /// 2F: rows of gate and up together.
  i64 rows = 0;
  i64 row_bytes = 0;
  /// K; divides F.
  i64 block_rows = 0;
  /// True: from contiguous to interleaved:K; false: back.
  bool interleave = true;
};

/// Bytes of device memory that InPlacePermutation works best with: about a thirtieth of the tensor where the cycles of
/// the permutation are long, a table only where they are short; never more than `most_bytes` unless less would not do.
i64 in_place_scratch_bytes(const InPlaceGlu& glu, i64 most_bytes = i64{256} << 20);

/// The rows of FC1 of all experts, permuted in place: for tensors of which a second copy does not fit.
class InPlacePermutation {
 public:
  /// Uploads a table to `scratch`: device memory, aligned to 16 bytes, of in_place_scratch_bytes() or more, the
  /// caller's, and in use as long as this object is; a run() on another stream has to wait for it. Throws Usage where K
  /// does not divide F or the scratch is too small or not aligned.
  InPlacePermutation(const InPlaceGlu& glu, std::byte* scratch, i64 scratch_bytes, GpuStream stream);
  ~InPlacePermutation();
  InPlacePermutation(InPlacePermutation&&) noexcept;
  InPlacePermutation& operator=(InPlacePermutation&&) noexcept;

  /// `data` is the device address of the first expert; fast where it and the bytes of K rows are multiples of 16.
  /// Asynchronous; a graph can capture it. Runs share the scratch, so one has to end before the next begins. Throws
  /// DeviceFailed with the shape.
  void run(std::byte* data, GpuStream stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Does the same for a caller who keeps nothing, on the current device, from any thread, and on any streams at once.
/// Its table is made at the first call for these sizes on this device, which waits for the upload, and kept. Later
/// calls are asynchronous, and a graph can capture them; what scratch they need they allocate on the stream. Throws
/// Usage where K does not divide F, and for a first call while `stream` is captured; NoMemory, DeviceFailed.
void in_place_glu(const InPlaceGlu& glu, std::byte* data, GpuStream stream);

}  // namespace glu_ckpt
