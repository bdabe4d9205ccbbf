#pragma once
/// The vocabulary of callers of GPU code. It includes no CUDA header, so that a build without nvcc compiles it too.
/// Functions that take a GpuStream are asynchronous on it and allocate no device memory, where they do not say
/// otherwise themselves; in a build without CUDA they throw Error(NoDevice).

#include <string>

#include "glu_ckpt/tensor.hpp"

/// The type that cudaStream_t points to.
struct CUstream_st;

namespace glu_ckpt {

using GpuStream = CUstream_st*;

/// Says whether kernels were compiled in.
bool built_with_cuda();
/// GPUs that this process can use; 0 without a driver, and in a build without CUDA.
int cuda_device_count();
/// Says in a sentence for people why cuda_device_count() is 0; empty where it is not.
std::string why_no_cuda();

/// The properties of a device that decide whether work is given to it.
struct CudaDevice {
  int index = 0;
  std::string name;
  /// 90 for compute capability 9.0.
  int compute_capability = 0;
  int multiprocessors = 0;
  i64 memory_bytes = 0;
  i64 free_bytes = 0;
  /// The version of CUDA that the driver supports, "13.0".
  std::string driver;
};

/// N of "cuda:N", 0 of "cuda". Throws Usage.
int cuda_index(const std::string& device);

/// Throws NoDevice where there is no device of that index.
CudaDevice cuda_device(int index);

/// Makes a device the current one of this thread, for as long as the object lives. Throws NoDevice, DeviceFailed.
class OnCudaDevice {
 public:
  explicit OnCudaDevice(int index);
  ~OnCudaDevice();
  OnCudaDevice(const OnCudaDevice&) = delete;
  OnCudaDevice& operator=(const OnCudaDevice&) = delete;

 private:
  int index_ = 0;
  int former_ = 0;
};

/// The number of the capture that the stream's work goes to, which no other capture of this process has; 0 where the
/// stream is not captured. Throws DeviceFailed.
u64 capture_number(GpuStream stream);

/// Lets this thread take device memory and fill it on a stream of its own, while other streams are captured in graphs:
/// CUDA refuses that otherwise. For the current device, as long as the object lives. Throws DeviceFailed.
class BesideCaptures {
 public:
  BesideCaptures();
  ~BesideCaptures();
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

  /// It waits for no other stream.
  GpuStream stream() const { return stream_; }

 private:
  GpuStream stream_ = nullptr;
  int former_mode_ = 0;
};

}  // namespace glu_ckpt
