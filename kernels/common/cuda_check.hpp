#pragma once
/// Every CUDA call is checked here. The sentences are worded in cuda_check.cpp: nvcc 13 rejects the checked
/// format strings of fmt 9, so .cu files pass names and numbers only.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Throws NoDevice, NoMemory or DeviceFailed, naming the call and where it stands.
[[noreturn]] void cuda_fail(cudaError_t status, const char* call, const char* file, int line);
/// Throws the same, naming the kernel and the shape it was launched on.
[[noreturn]] void cuda_launch_fail(cudaError_t status, const char* kernel, const std::string& shape);
/// Throw NoMemory with the bytes wanted, and those free on the current device.
[[noreturn]] void device_memory_fail(cudaError_t status, i64 wanted_bytes);
[[noreturn]] void pinned_memory_fail(cudaError_t status, i64 wanted_bytes);

#define CUDA_CHECK(call)                                                                \
  do {                                                                                  \
    if (const cudaError_t cuda_check_status = (call); cuda_check_status != cudaSuccess) \
      ::glu_ckpt::cuda_fail(cuda_check_status, #call, __FILE__, __LINE__);              \
  } while (false)

/// Checks a launch. `describe` returns the shape as text and is called only on failure.
template <typename Describe>
void check_launch(const char* kernel, const Describe& describe) {
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess)
    cuda_launch_fail(status, kernel, describe());
}

}  // namespace glu_ckpt
