#include <algorithm>
#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/grouped_gemm/store_splits.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kPerLaunch = 256;

struct Splits {
  i64 at[kPerLaunch];
};

__global__ void store_splits_kernel(const __grid_constant__ Splits splits, i64* out, unsigned count) {
  if (threadIdx.x < count) out[threadIdx.x] = splits.at[threadIdx.x];
}

}  // namespace

void store_splits(std::span<const i64> splits, i64* on_device, GpuStream stream) {
  for (std::size_t first = 0; first < splits.size(); first += kPerLaunch) {
    const std::size_t count = std::min(kPerLaunch, splits.size() - first);
    Splits part{};
    std::copy_n(splits.begin() + static_cast<std::ptrdiff_t>(first), count, part.at);
    store_splits_kernel<<<1, kPerLaunch, 0, stream>>>(part, on_device + first, static_cast<unsigned>(count));
    check_launch("store_splits", [&] { return std::to_string(splits.size()) + " splits"; });
  }
}

}  // namespace glu_ckpt
