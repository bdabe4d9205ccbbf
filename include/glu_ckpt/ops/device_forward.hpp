#pragma once
/// The grouped MLP on tensors that are in GPU memory.

#include <memory>

#include "glu_ckpt/ops/cuda.hpp"
#include "glu_ckpt/ops/grouped_mlp.hpp"

namespace glu_ckpt {

/// The experts of one layer on a GPU, as grouped_mlp_host() describes them: FC1, activation and probability are one
/// kernel, FC2 is the second, which may begin where the first has ended for an expert. Splits stay on the device, so a
/// captured graph replays with new splits. Let a run() of as many rows go before the one that is captured: CUDA loads a
/// kernel when it is first launched.
///
/// Every sum is made in one order, which depends on sizes and dtypes only, never on the layout or on where a tensor
/// lies: equal weights in two layouts give equal bits, and so do two runs. The order is not the CPU's.
class DeviceGroupedMlp {
 public:
  /// `mlp.experts` point to device memory, which has to stay as long as this object does; all have one width F. Their
  /// values are read by each run, so they may change between two. Experts of one grouped tensor and experts in tensors
  /// of their own are the same to it. Takes device memory for `max_rows` rows of what lies between the two kernels
  /// (0: every run brings a workspace), for addresses, for biases in fp32, and for copies of weights whose layout the
  /// kernels cannot read as it is: those whose block K is not a multiple of 8 nor a power of two, whose columns are not
  /// dense, whose rows do not begin at multiples of 16 bytes or lie in two tensors. Each run makes such copies anew.
  /// Waits for `stream`. Throws as grouped_mlp_host() does, and NoMemory, DeviceFailed.
  DeviceGroupedMlp(const GroupedMlp& mlp, i64 max_rows, GpuStream stream);
  ~DeviceGroupedMlp();
  DeviceGroupedMlp(DeviceGroupedMlp&&) noexcept;
  DeviceGroupedMlp& operator=(DeviceGroupedMlp&&) noexcept;

  /// The device memory that a run of so many rows needs: some 2 F bytes a row in 16-bit dtypes. Pure.
  i64 workspace_bytes(i64 rows) const;

  /// x [rows, H], splits [E], probs [rows] and out [rows, H] are device memory and do not overlap. Runs on `stream`
  /// without waiting for it. Rows of `out` behind the last split keep what they hold. Splits that are negative or take
  /// more than `rows` rows leave all of `out` as it is; check_splits() tells. Runs of one object share its memory, so
  /// they have to follow one another. Throws Usage, before anything is launched, for rows that are negative or more
  /// than the workspace is for, where x and out overlap, and for addresses that are null or not aligned to their dtype;
  /// where Hopper's matrix instructions are used (16-bit dtypes) and rows of x are multiples of 16 bytes, x has to
  /// begin at one, too. Throws DeviceFailed. `z`, where it is not null, gets the pre-activation for a backward, as
  /// grouped_mlp_host() says. `workspace` begins at a multiple of 256 and has workspace_bytes(rows); where it is null,
  /// the object's own for max_rows rows is used.
  void run(const void* x, i64 rows, const i64* splits, const float* probs, void* out, GpuStream stream,
           void* z = nullptr, void* workspace = nullptr) const;

  /// Checks that the newest run's splits were right; before the first run nothing is wrong. Waits for `stream`. Throws
  /// Usage with the numbers.
  void check_splits(GpuStream stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glu_ckpt
