#include <cuda_runtime_api.h>

#include <future>

#include "core/fail.hpp"
#include "glu_ckpt/ops/cuda.hpp"
#include "kernels/common/cuda_check.hpp"

namespace glu_ckpt {

bool built_with_cuda() { return true; }

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    // The call leaves its error behind, which a later check would take for its own.
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

std::string why_no_cuda() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  (void)cudaGetLastError();
  if (status == cudaSuccess && count > 0) return {};
  if (status == cudaSuccess) return "the driver lists no device";
  // CUDA's text for a missing driver is that it is too old.
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "no NVIDIA driver is installed";
  return cudaGetErrorString(status);
}

namespace {

/// The caller runs this on a thread of its own: setting the device back afterwards would open that one, too.
CudaDevice describe(int index) {
  CUDA_CHECK(cudaSetDevice(index));
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  std::size_t free_bytes = 0, total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  int driver = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  CudaDevice device;
  device.index = index;
  device.name = properties.name;
  device.compute_capability = properties.major * 10 + properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  device.memory_bytes = static_cast<i64>(total_bytes);
  device.free_bytes = static_cast<i64>(free_bytes);
  device.driver = std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10);
  return device;
}

}  // namespace

CudaDevice cuda_device(int index) {
  const int count = cuda_device_count();
  if (count == 0) fail(ErrorCode::NoDevice, {}, "cuda:{}: {}", index, why_no_cuda());
  if (index < 0 || index >= count)
    fail(ErrorCode::NoDevice, {}, "cuda:{}: there are {} devices here, numbered from 0", index, count);
  return std::async(std::launch::async, describe, index).get();
}

OnCudaDevice::OnCudaDevice(int index) : index_(index) {
  CUDA_CHECK(cudaGetDevice(&former_));
  if (former_ != index_) CUDA_CHECK(cudaSetDevice(index_));
}

// A failure to go back cannot be acted upon; the next checked call reports it.
OnCudaDevice::~OnCudaDevice() {
  if (former_ != index_) (void)cudaSetDevice(former_);
}

}  // namespace glu_ckpt
