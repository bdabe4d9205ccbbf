#pragma once
/// The gradients of the grouped MLP of ops/grouped_mlp.hpp, for weights in any GLU order, on the CPU and on a GPU.
///
/// With G = dout W2^T, the pre-activation z = (a, u), A = act(a, u) and its derivatives A_a and A_u:
///   da = (G p) A_a,  du = (G p) A_u,  y = A p,
///   dx = da W_gate + du W_up,  dW_gate = da^T x,  dW_up = du^T x,  dW_down = dout^T y,
///   db_gate = sum of da, db_up = sum of du, db_down = sum of p dout, over an expert's tokens,
///   dp = sum over f of G A, plus the sum over h of dout b_down.
/// Without a gate there is no a. So p multiplies the activation before FC2, and the bias of FC2 behind it.
///
/// Rounded to the compute dtype, to nearest even: z, as the forward does; the p of da, du and y, as the forward does;
/// da, du and y, once; dx, once. dp is fp32. A gradient of a weight or bias is rounded once, to its own dtype; where it
/// is accumulated, the old value is the last that is added, in fp32, before that. The p of db_down is as it was given.
///
/// Derivatives at the borders are TransformerEngine's: of min(a, limit) it is 1 at the limit, of clamp(u, -limit,
/// limit) 1 at both, of max(a, 0) 0 at 0. A NaN in a or u makes da and du NaN where the formula has it as a factor or
/// within a clamp.

#include "glu_ckpt/ops/output_buffer.hpp"

namespace glu_ckpt {

/// The experts of one layer, and where their gradients go.
struct MlpBackward {
  /// The experts, as the forward takes them; all have one width F.
  GroupedMlp mlp;
  /// One per expert, of the shapes of its weights, whose memory is written: in any layout, which need not be that of
  /// the weights, but with one address for each element. Dtypes are the compute dtype or F32, one for all experts'
  /// matrices of one kind. A gradient that is not there, for any expert, is not computed for any. Experts without rows
  /// get zeros; accumulated gradients stay as they are. Empty: no gradient of weights or biases is wanted.
  std::span<const ExpertWeights> grads = {};
  /// Adds to what gradients of weights, or of biases, hold.
  bool accumulate_weights = false;
  bool accumulate_biases = false;
};

/// One step's tensors: rows of all experts, dense and row-major, sorted by expert. What is written overlaps nothing
/// else.
struct MlpBackwardStep {
  i64 rows = 0;
  /// [rows, H], the forward's input; read where a gradient of gate or up is wanted, and where z is recomputed.
  const void* x = nullptr;
  /// [rows].
  const float* probs = nullptr;
  /// [rows, H], the gradient of the forward's output.
  const void* dout = nullptr;
  /// [rows, 2F], of the compute dtype, as the forward saved it: F columns of a, then F of u, whatever the order of
  /// FC1's rows; [rows, F] without a gate. Null: recomputed, for the price of FC1; with the same bits, but on
  /// Hopper where DeviceGroupedMlp copies 16-bit weights, for then FC1's sums have another order here.
  const void* z = nullptr;
  /// [rows, H]; null: not computed.
  void* dx = nullptr;
  /// [rows]; null: not computed.
  float* dprobs = nullptr;
};

/// Computes the gradients in host memory, with up to `jobs` threads. Every sum is made in the one order that
/// grouped_mlp_host() documents, where the columns of a sum are: for G the columns of dout; for dx F of da, then F of
/// du; for dp F, plus then the finished sum over dout's columns; for gradients of weights and biases the expert's
/// tokens. So equal weights in two layouts give equal bits. Rows of dx and dprobs behind the last split keep what they
/// hold. Throws as grouped_mlp_host() does, and Usage, NotSupported for gradients, with the numbers, before anything is
/// written.
void grouped_mlp_backward_host(const MlpBackward& backward, const MlpBackwardStep& step, std::span<const i64> splits,
                               int jobs);

/// Computes the gradients on a GPU. Splits stay on the device; it waits for nothing and allocates nothing, so a
/// captured graph replays with new splits. Nothing is added by atomics: the same input gives the same bits, whatever
/// ran before.
///
/// Sums have one order, which depends on sizes, dtypes and alignment only. On Hopper 16-bit dtypes take WGMMA kernels
/// where H and F are multiples of 8, weights are as DeviceGroupedMlp reads them without a copy, addresses of rows are
/// multiples of 16, and the gradients' rows begin at such, too; all such layouts give equal bits. Other dtypes, sizes,
/// layouts and GPUs (Blackwell among them) take kernels of ordinary fp32 multiplications, which are slow, with bits
/// that no layout changes either.
class DeviceGroupedMlpBackward {
 public:
  /// Prepares runs on the current device. Weights and gradients are device memory, at these addresses as long as this
  /// object is there; their values are read by each run. Takes memory for addresses and a schedule, some 2 KiB an
  /// expert; waits for `stream`. Throws as grouped_mlp_backward_host() does, and NoMemory, DeviceFailed.
  DeviceGroupedMlpBackward(const MlpBackward& backward, GpuStream stream);
  ~DeviceGroupedMlpBackward();
  DeviceGroupedMlpBackward(DeviceGroupedMlpBackward&&) noexcept;
  DeviceGroupedMlpBackward& operator=(DeviceGroupedMlpBackward&&) noexcept;

  /// The device memory that a run of so many rows needs besides: some 6 F bytes a row in 16-bit dtypes, 4 F more where
  /// z is recomputed. Pure.
  i64 workspace_bytes(i64 rows, bool recompute) const;

  /// All in device memory. `workspace` begins at a multiple of 256 and has workspace_bytes(step.rows, step.z is null);
  /// what it holds before and after means nothing. Splits that are negative or take more than `rows` rows write
  /// nothing; check_splits() tells. Let a run of as many rows go before the one that a graph captures. Runs of one
  /// object have to follow one another. Throws Usage, before anything is launched, for rows and addresses that are
  /// negative, null or not aligned to their dtype; DeviceFailed.
  void run(const MlpBackwardStep& step, const i64* splits, void* workspace, GpuStream stream) const;

  /// Checks that the newest run's splits were right. Waits for `stream`. Throws Usage with the numbers.
  void check_splits(GpuStream stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The tensors of a backward, all on one device and contiguous; rows are those of `mlp` of the forward.
struct MlpBackwardTensors {
  /// x, splits and probs, as in the forward. Its `out` is the buffer for dx, shaped as x; null for one of its own.
  MlpTensors forward;
  /// Shaped as x.
  TensorView dout;
  /// [T, 2F] of the compute dtype, [T, F] without a gate; null: recomputed.
  const TensorView* z = nullptr;
  bool want_dx = true;
  bool want_dprobs = true;
};

/// dx shaped as x, in the caller's buffer where there is one, and dprobs [T]; without an address where not wanted.
struct MlpInputGrads {
  TensorView dx;
  TensorView dprobs;
};

/// grouped_mlp_backward_host() on tensors of device "cpu". The values are the same whoever provides the memory; rows
/// behind the last split keep what they held. Throws as grouped_mlp_into() does, with dout and z checked likewise;
/// nothing is written or allocated then.
MlpInputGrads grouped_mlp_backward_into(const MlpBackward& backward, const MlpBackwardTensors& tensors,
                                        const AllocateOutput& allocate, int jobs);

/// Does the same on a GPU; `run` was made of `backward`. The workspace comes from `allocate` too: `release` gets its
/// address back once everything is launched, and may give it to work that follows on the same stream.
MlpInputGrads grouped_mlp_backward_into(const DeviceGroupedMlpBackward& run, const MlpBackward& backward,
                                        const MlpBackwardTensors& tensors, const AllocateOutput& allocate,
                                        const std::function<void(std::byte*)>& release, GpuStream stream);

}  // namespace glu_ckpt
