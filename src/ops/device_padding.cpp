#include <cuda_runtime_api.h>

#include "kernels/common/cuda_check.hpp"
#include "ops/padding_runs.hpp"

namespace glu_ckpt {

void pad_rows_device(const TokenPadding& padding, const void* rows, i64 row_bytes, void* padded, GpuStream stream) {
  const auto* const from = static_cast<const std::byte*>(rows);
  auto* const to = static_cast<std::byte*>(padded);
  for (const PaddingRun& run : padding_runs(padding, row_bytes)) {
    CUDA_CHECK(cudaMemcpyAsync(to + run.padded_at, from + run.at, static_cast<std::size_t>(run.bytes),
                               cudaMemcpyDeviceToDevice, stream));
    if (run.added_bytes > 0)
      CUDA_CHECK(cudaMemsetAsync(to + run.padded_at + run.bytes, 0, static_cast<std::size_t>(run.added_bytes), stream));
  }
}

void unpad_rows_device(const TokenPadding& padding, const void* padded, i64 row_bytes, void* rows, GpuStream stream) {
  const auto* const from = static_cast<const std::byte*>(padded);
  auto* const to = static_cast<std::byte*>(rows);
  for (const PaddingRun& run : padding_runs(padding, row_bytes))
    CUDA_CHECK(cudaMemcpyAsync(to + run.at, from + run.padded_at, static_cast<std::size_t>(run.bytes),
                               cudaMemcpyDeviceToDevice, stream));
}

}  // namespace glu_ckpt
