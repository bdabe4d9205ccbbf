#include "kernels/common/cuda_check.hpp"

#include <string_view>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

/// The path below the source root, so that a message does not depend on where the program was built.
std::string_view short_path(std::string_view file) {
  const auto at = file.rfind("kernels/");
  const auto src = file.rfind("src/");
  if (at != std::string_view::npos) return file.substr(at);
  return src != std::string_view::npos ? file.substr(src) : file;
}

bool no_device(cudaError_t status) {
  return status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver || status == cudaErrorInvalidDevice ||
         status == cudaErrorSystemNotReady || status == cudaErrorSystemDriverMismatch;
}

ErrorCode code_of(cudaError_t status) {
  if (no_device(status)) return ErrorCode::NoDevice;
  return status == cudaErrorMemoryAllocation ? ErrorCode::NoMemory : ErrorCode::DeviceFailed;
}

}  // namespace

void cuda_fail(cudaError_t status, const char* call, const char* file, int line) {
  // The runtime remembers it, and the next check of a launch would report it as its own.
  (void)cudaGetLastError();
  fail(code_of(status), {}, "{} ({}:{}): {}: {}", call, short_path(file), line, cudaGetErrorName(status),
       cudaGetErrorString(status));
}

void cuda_launch_fail(cudaError_t status, const char* kernel, const std::string& shape) {
  fail(code_of(status), {}, "kernel {} on {}: {}: {}", kernel, shape, cudaGetErrorName(status),
       cudaGetErrorString(status));
}

void device_memory_fail(cudaError_t status, i64 wanted_bytes) {
  if (status != cudaErrorMemoryAllocation) cuda_fail(status, "cudaMalloc", "kernels/device_buffer.hpp", 0);
  (void)cudaGetLastError();
  std::size_t free_bytes = 0, total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  fail(ErrorCode::NoMemory, {}, "device memory: {} bytes are needed and {} of {} are free; lower --device-memory",
       wanted_bytes, free_bytes, total_bytes);
}

void pinned_memory_fail(cudaError_t status, i64 wanted_bytes) {
  if (status != cudaErrorMemoryAllocation) cuda_fail(status, "cudaMallocHost", "kernels/pinned_buffer.cpp", 0);
  (void)cudaGetLastError();
  fail(ErrorCode::NoMemory, {}, "page-locked host memory: {} bytes are needed; lower --max-memory", wanted_bytes);
}

}  // namespace glu_ckpt
