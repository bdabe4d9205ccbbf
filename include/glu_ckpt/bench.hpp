#pragma once
/// How fast this machine is at what the tool does, each figure beside the machine's own ceiling in the same run.

#include <functional>
#include <string>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// One kernel on one shape. Times are medians over rounds in which kernel and reference take turns.
struct KernelFigure {
  std::string kernel;
  std::string model;
  std::string what;
  /// Elements; the last axis is contiguous.
  std::vector<i64> shape;
  /// Read and written together; 0 where the time of a launch is what counts.
  i64 bytes = 0;
  double microseconds = 0;
  /// What it is measured against: "cudaMemcpyAsync" of the same bytes, or "strided_copy"; empty for none.
  std::string reference;
  double reference_microseconds = 0;

  double gb_per_s() const { return static_cast<double>(bytes) / microseconds / 1e3; }
  /// Speed over that of the reference.
  double ratio() const { return reference_microseconds / microseconds; }
};

struct KernelBenchOptions {
  int device = 0;
  /// Bytes of device memory to use at most; 0 for nine tenths of what is free. Shapes with many experts are cut to fit.
  i64 memory_bytes = 0;
  int rounds = 11;
  /// Called with every figure as it is made.
  std::function<void(const KernelFigure&)> on_figure;
};

/// Times the kernels on the experts of DeepSeek-V3, Kimi-K2, Qwen3-30B, gpt-oss-120b and Mixtral, bf16.
/// Throws NoDevice, NoMemory, DeviceFailed.
std::vector<KernelFigure> bench_kernels(const KernelBenchOptions& options);

}  // namespace glu_ckpt
