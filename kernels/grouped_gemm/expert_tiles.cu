/// Launches of make_expert_tiles() and store_splits(), and the check of the status that they leave.

#include <algorithm>
#include <string>

#include "kernels/common/launch_overlapping.cuh"
#include "kernels/grouped_gemm/expert_tiles.cuh"

namespace glu_ckpt {
namespace {

constexpr std::size_t kSplitsPerLaunch = 256;

struct SplitArguments {
  i64 at[kSplitsPerLaunch];
};

__global__ void store_splits_kernel(const __grid_constant__ SplitArguments splits, i64* out, unsigned count) {
  if (threadIdx.x < count) out[threadIdx.x] = splits.at[threadIdx.x];
}

}  // namespace

void make_expert_tiles(const i64* splits, i64 num_experts, i64 rows, i32 tile_rows, const ExpertTiles& tiles,
                       GpuStream stream) {
  const i64 rounded = (num_experts + schedule::kWarp - 1) / schedule::kWarp * schedule::kWarp;
  const auto threads = static_cast<unsigned>(rounded < schedule::kMaxThreads ? rounded : schedule::kMaxThreads);
  launch_overlapping(schedule::expert_tiles_kernel, 1, threads, 0, stream, splits, static_cast<i32>(num_experts), rows,
                     tile_rows, tiles);
  check_launch("expert_tiles",
               [&] { return std::to_string(num_experts) + " splits of " + std::to_string(rows) + " rows"; });
}

void prepare_expert_tiles() {
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(schedule::expert_tiles_kernel)));
}

void store_splits(std::span<const i64> splits, i64* on_device, GpuStream stream) {
  for (std::size_t first = 0; first < splits.size(); first += kSplitsPerLaunch) {
    const std::size_t count = std::min(kSplitsPerLaunch, splits.size() - first);
    SplitArguments part{};
    std::copy_n(splits.begin() + static_cast<std::ptrdiff_t>(first), count, part.at);
    store_splits_kernel<<<1, kSplitsPerLaunch, 0, stream>>>(part, on_device + first, static_cast<unsigned>(count));
    check_launch("store_splits", [&] { return std::to_string(splits.size()) + " splits"; });
  }
}

void check_split_status(const SplitStatus* device_status, GpuStream stream) {
  SplitStatus status;
  CUDA_CHECK(cudaMemcpyAsync(&status, device_status, sizeof status, cudaMemcpyDeviceToHost, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
  check_split_status(status);
}

}  // namespace glu_ckpt
