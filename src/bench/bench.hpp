#pragma once
/// Benchmarks of the tool's work on this machine, each figure beside the machine's own ceiling in the same run.

#include <functional>
#include <string>
#include <vector>

#include "glu_ckpt/run_options.hpp"
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
  /// The work it is measured against: "cudaMemcpyAsync" or "plain_read of both" of the same bytes, or "strided_copy";
  /// empty for none.
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

/// The experts of one layer: E, H and F.
struct ForwardShape {
  std::string model;
  i64 experts = 0;
  i64 hidden = 0;
  i64 width = 0;
};

/// One layer's experts on tokens in even splits: bf16, SwiGLU, FC1 [E, 2F, H] in interleaved:32. Times are medians over
/// rounds in which everything takes turns, in microseconds, and 0 for what did not run.
struct ForwardFigure {
  ForwardShape shape;
  i64 tokens_per_expert = 0;
  double microseconds = 0;
  /// FC1, SwiGLU in a kernel of its own and FC2, through cuBLAS.
  double cublas_microseconds = 0;
  /// A plain read of the same weights.
  double read_microseconds = 0;
  /// One dense bf16 product of 8192 x 8192 matrices through cuBLAS.
  double dense_microseconds = 0;
  /// The gradients of x, probabilities and weights from a saved pre-activation, and where that is recomputed; 0 where
  /// they were not timed.
  double backward_microseconds = 0;
  double recompute_microseconds = 0;
  /// The forward that saves it, and one that does not, in turn with it.
  double saving_microseconds = 0;
  double not_saving_microseconds = 0;
  /// Largest difference between a value of ours and one of cuBLAS's, in units of the rms of ours.
  double cublas_difference = 0;

  /// Bytes of FC1 and FC2, each of which is read once at the least.
  i64 weight_bytes() const { return 6 * shape.experts * shape.hidden * shape.width; }
  double flops() const {
    return 6.0 * static_cast<double>(shape.experts * tokens_per_expert) *
           static_cast<double>(shape.hidden * shape.width);
  }
  double tflops() const { return flops() / microseconds / 1e6; }
  /// The backward's four products are twice the forward's operations.
  double backward_tflops() const { return 2 * flops() / backward_microseconds / 1e6; }
  double weight_gb_per_s() const { return static_cast<double>(weight_bytes()) / microseconds / 1e3; }
  double read_gb_per_s() const { return static_cast<double>(weight_bytes()) / read_microseconds / 1e3; }
  /// Speeds over those of the two ceilings, and over cuBLAS's.
  double of_read() const { return read_microseconds / microseconds; }
  double of_dense() const { return tflops() / dense_tflops(); }
  double times_cublas() const { return cublas_microseconds / microseconds; }
  double dense_tflops() const { return 2.0 * 8192 * 8192 * 8192 / dense_microseconds / 1e6; }
};

struct ForwardBenchOptions {
  /// The GPU. bench_forward_host() takes none.
  int device = 0;
  /// Threads of bench_forward_host().
  int jobs = 1;
  /// Bytes to use at most: on a GPU 0 for nine tenths of what is free. Layers are cut to as many experts as fit.
  i64 memory_bytes = 0;
  /// A model of forward_shapes(); empty for all of them on a GPU, and for Qwen3-30B on a CPU.
  std::string model;
  /// Tokens per expert; empty for 1, 8, 64, 256, 1024, 4096 on a GPU and 1, 4, 16 on a CPU.
  std::vector<i64> tokens;
  /// The most rounds; a figure gets fewer where they would take more than a few seconds.
  int rounds = 11;
  /// Times the backward too, on a GPU.
  bool backward = false;
  /// Called with every figure as it is made.
  std::function<void(const ForwardFigure&)> on_figure;
};

struct ForwardBench {
  std::vector<ForwardFigure> figures;
  /// The reason why there are no figures of cuBLAS; empty where there are.
  std::string no_cublas;
};

/// DeepSeek-V3 (64 of its 256 experts, the share of each GPU where four hold a layer), Qwen3-30B, Mixtral-8x7B.
std::vector<ForwardShape> forward_shapes();

/// Times DeviceGroupedMlp beside cuBLAS, a plain read of the weights and a dense product. Throws Usage for a model that
/// is not listed and tokens below 1, NoDevice, NoMemory, DeviceFailed, and VerifyFailed where ours and cuBLAS's answers
/// are not the same but for rounding.
ForwardBench bench_forward(const ForwardBenchOptions& options);

/// Times grouped_mlp_host() beside a plain read of the weights by as many threads.
ForwardBench bench_forward_host(const ForwardBenchOptions& options);

/// Conversions of one checkpoint beside other ways to write as many bytes, all on the same disk and down to it. Seconds
/// are medians of rounds in turn.
struct ConvertBench {
  struct Figure {
    std::string what;
    double seconds = 0;
  };
  std::string dir;
  /// The bytes of the checkpoint's file.
  i64 bytes = 0;
  int jobs = 0;
  int rounds = 0;
  double copy_seconds = 0;
  double write_seconds = 0;
  std::vector<Figure> conversions;
};

/// Converts a generated checkpoint of about `bytes` bytes in `dir`, in turn with cp(1) of the same bytes and a plain
/// write of them, and removes it. Throws NotFound, NoSpace, Io, Interrupted.
ConvertBench bench_convert(const std::string& dir, i64 bytes, const RunOptions& run);

}  // namespace glu_ckpt
