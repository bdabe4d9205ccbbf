#pragma once
/// One linear layer per expert over rows sorted by expert, and the two products of its gradients.
///
/// The place of the splits decides which way is taken:
///   on the device  DeviceGroupedLinear: this library's kernels. Nothing waits for the host, so a captured graph
///                  replays with new splits.
///   on the host    GroupedLinearHostSplits: one product per expert by cuBLAS where a libcublas is found, else the same
///                  kernels as above.
///   no GPU         grouped_linear_host().
/// Their sums differ in order. Let s be the sum of the absolute values of an element's products. Two ways agree within
/// 1.6e-2 (bf16), 1e-3 (fp16) or 1.3e-6 (fp32) of the element, plus 1e-5 or 2^-21 s, whichever is more;
/// where cuBLAS adds to a dW, of the element and the old one together, for it rounds the product before it adds it.

#include <memory>
#include <span>
#include <string>

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt {

/// The three products of a linear layer. W_i is [out, in]; x_i and y_i are the rows of expert i.
enum class LinearProduct {
  /// TN: y_i = x_i W_i^T, [m, in] x [out, in] -> [m, out].
  Forward,
  /// NN: dx_i = dy_i W_i, [m, out] x [out, in] -> [m, in].
  InputGrad,
  /// NT: dW_i = dy_i^T x_i -> [out, in]; zeros for an expert without rows.
  WeightGrad,
};

/// One matrix [out, in] per expert, dense and row-major: in tensors of their own, or at equal steps in one.
template <typename Void>
struct ExpertMatrices {
  /// Addresses, one per expert; empty where `first` is used. Read while an object is made, not later.
  std::span<Void* const> each = {};
  Void* first = nullptr;
  /// Bytes from one expert to the next.
  i64 step_bytes = 0;
};

struct GroupedLinear {
  LinearProduct product = LinearProduct::Forward;
  /// The dtype of x, dy, y, dx and W: BF16, F16 or F32. Sums are fp32 and rounded once, to nearest even.
  Dtype dtype = Dtype::BF16;
  i64 num_experts = 0;
  i64 in_features = 0;
  i64 out_features = 0;
  /// W of Forward and InputGrad.
  ExpertMatrices<const void> weights = {};
  /// dW of WeightGrad: written, so they must not overlap.
  ExpertMatrices<void> grads = {};
  /// The dtype of dW: `dtype` or F32.
  Dtype grad_dtype = Dtype::BF16;
  /// WeightGrad adds to what dW holds: the sum of the products to it, as the last addition.
  bool accumulate = false;
};

/// Rows of all experts, dense and row-major: the first splits[0] rows are expert 0's, the next splits[1] expert 1's.
/// Rows behind the last split are neither read nor written. Nothing overlaps what is written.
struct LinearRows {
  i64 rows = 0;
  /// [rows, in], which Forward and WeightGrad read.
  const void* x = nullptr;
  /// [rows, out], which InputGrad and WeightGrad read.
  const void* dy = nullptr;
  /// y [rows, out] of Forward, dx [rows, in] of InputGrad.
  void* out = nullptr;
};

/// Computes the product in host memory with up to `jobs` threads, by loops from the definition. An element's sum starts
/// at 0 and takes its products from the first to the last, each by one fused multiply-add; -0 comes out as 0. Throws
/// Usage for shapes, pointers that are null or not aligned to their dtype, and splits that are negative or take more
/// than `rows` rows; NotSupported for dtypes; with the numbers, before anything is written.
void grouped_linear_host(const GroupedLinear& linear, const LinearRows& rows, std::span<const i64> splits, int jobs);

/// Computes the product on a GPU, with splits in device memory. 16-bit dtypes multiply on tensor cores (compute
/// capability 8.0 or later; by WGMMA on Hopper, where sizes are multiples of 8), fp32 by fused multiply-adds in the
/// order of grouped_linear_host(), and with its bits.
///
/// An element's sum has one order, which depends on the number of its products alone: not on the splits, the other
/// rows, addresses or a run before. Matrices in tensors of their own and in one give equal bits. Where an address or a
/// row is not a multiple of 16 bytes, 16-bit dtypes take a slower way, with the same bits.
class DeviceGroupedLinear {
 public:
  /// Prepares runs on the current device, on streams of that device. Takes memory there for addresses and a schedule,
  /// 20 bytes an expert, and on Hopper for at most 1 KiB an expert more; waits for `stream`. What `linear` points to is
  /// device memory. Throws as grouped_linear_host() does, and NoMemory, DeviceFailed.
  DeviceGroupedLinear(const GroupedLinear& linear, GpuStream stream);
  ~DeviceGroupedLinear();
  DeviceGroupedLinear(DeviceGroupedLinear&&) noexcept;
  DeviceGroupedLinear& operator=(DeviceGroupedLinear&&) noexcept;

  /// `splits` [num_experts] is device memory. Two launches; waits for nothing and allocates nothing. Splits that are
  /// negative or take more than `rows` rows write nothing at all; check_splits() tells. Runs of one object share its
  /// memory, so they have to follow one another.
  void run(const LinearRows& rows, const i64* splits, GpuStream stream) const;

  /// Checks that the newest run's splits were right. Waits for `stream`. Throws Usage with the numbers.
  void check_splits(GpuStream stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Says in a sentence why host splits do not go through cuBLAS here; empty where they do. The library is looked for
/// once, by the names libcublas.so.13 and libcublas.so.12, or as the path in the environment's GLU_CKPT_CUBLAS.
std::string why_no_cublas();

enum class LinearEngine {
  /// cuBLAS where it is there.
  Auto,
  Cublas,
  Kernels,
};

/// Computes the product on a GPU, with splits in host memory.
class GroupedLinearHostSplits {
 public:
  /// Prepares runs on the current device, on streams of that device; waits for `stream`. Takes memory there: cuBLAS's
  /// own, and 32 MiB as its workspace. Throws as DeviceGroupedLinear does; NoDevice where LinearEngine::Cublas is asked
  /// for and is not there.
  GroupedLinearHostSplits(const GroupedLinear& linear, LinearEngine engine, GpuStream stream);
  ~GroupedLinearHostSplits();
  GroupedLinearHostSplits(GroupedLinearHostSplits&&) noexcept;
  GroupedLinearHostSplits& operator=(GroupedLinearHostSplits&&) noexcept;

  /// Waits for nothing. A graph can capture it, by cuBLAS once a run was not captured, which loads its kernels; the
  /// graph keeps these splits. Throws Usage for wrong splits, before anything is launched. Runs of one object have to
  /// follow one another.
  void run(const LinearRows& rows, std::span<const i64> splits, GpuStream stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glu_ckpt
