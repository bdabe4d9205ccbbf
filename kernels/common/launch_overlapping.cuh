#pragma once
/// Launches that begin while the one before them in the stream ends (programmatic dependent launch). Such a kernel says
/// from where on it needs what was written before it, and every kernel says from when on the next one may begin. GPUs
/// before Hopper run one after the other.

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "glu_ckpt/ops/cuda.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/common/launch_order.cuh"

namespace glu_ckpt {

/// Says whether launches overlap on the current device: Hopper or later, with code that was compiled for it, for code
/// of older targets does not wait.
inline bool launches_overlap() {
  constexpr int kHopper = 9;
  constexpr int kTargets[] = {__CUDA_ARCH_LIST__};
  int device = 0;
  int major = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= kHopper && std::ranges::any_of(kTargets, [major](int target) { return target / 100 == major; });
}

/// Launches a kernel that calls wait_for_launch_before() before it reads or writes what the launches before it in the
/// stream read or write. `shared_bytes` are those of dynamic shared memory. Asynchronous.
template <typename... Parameters>
void launch_overlapping(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, int shared_bytes,
                        GpuStream stream, const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = launches_overlap() ? 1 : 0;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace glu_ckpt
