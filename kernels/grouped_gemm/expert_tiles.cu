/// The launch of the schedule, and the way of its status back.

#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/grouped_gemm/expert_tiles.cuh"

namespace glu_ckpt {

void make_expert_tiles(const i64* splits, i64 num_experts, i64 rows, i32 tile_rows, const ExpertTiles& tiles,
                       GpuStream stream) {
  const i64 rounded = (num_experts + schedule::kWarp - 1) / schedule::kWarp * schedule::kWarp;
  const auto threads = static_cast<unsigned>(rounded < schedule::kMaxThreads ? rounded : schedule::kMaxThreads);
  schedule::expert_tiles_kernel<<<1, threads, 0, stream>>>(splits, static_cast<i32>(num_experts), rows, tile_rows,
                                                           tiles);
  check_launch("expert_tiles",
               [&] { return std::to_string(num_experts) + " splits of " + std::to_string(rows) + " rows"; });
}

void prepare_expert_tiles() {
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(schedule::expert_tiles_kernel)));
}

void check_split_status(const SplitStatus* device_status, GpuStream stream) {
  SplitStatus status;
  CUDA_CHECK(cudaMemcpyAsync(&status, device_status, sizeof status, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  check_split_status(status);
}

}  // namespace glu_ckpt
