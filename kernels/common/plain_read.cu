#include <cstdint>
#include <limits>
#include <string>

#include "glu_ckpt/error.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/common/load_once.cuh"
#include "kernels/common/plain_read.hpp"

namespace glu_ckpt {
namespace {

constexpr int kThreads = 256;
/// Loads of 16 bytes that each thread has in flight: eight blocks of 32 KiB on a multiprocessor are several times what
/// hides the latency of an H200's memory.
constexpr int kLoads = 8;

/// Each block reads its own 32 KiB and ends, so that blocks nearer to the memory take more of them.
__global__ void __launch_bounds__(kThreads) plain_read_kernel(const uint4* data, i64 words, u32* sums) {
  const i64 first = static_cast<i64>(blockIdx.x) * (kThreads * kLoads) + threadIdx.x;
  uint4 loaded[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const i64 at = first + i * kThreads;
    loaded[i] = at < words ? load_once(data + at) : uint4{0, 0, 0, 0};
  }
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) sum ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum ^= __shfl_xor_sync(0xffffffffU, sum, lanes);
  __shared__ u32 of_warp[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) sum ^= of_warp[warp];
  atomicXor(sums + blockIdx.x % kReadSums, sum);
}

}  // namespace

void plain_read(const void* data, i64 bytes, u32* sums, GpuStream stream) {
  if (bytes == 0) return;
  constexpr i64 kBlockBytes = i64{kThreads} * kLoads * static_cast<i64>(sizeof(uint4));
  const i64 blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  const auto shape = [bytes] { return std::to_string(bytes) + " bytes"; };
  if (bytes < 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0 ||
      blocks > std::numeric_limits<int>::max())
    throw Error(ErrorCode::Usage, "plain_read: " + shape() + "; a multiple of 16 at an aligned address is needed");
  plain_read_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16,
                                                                            sums);
  check_launch("plain_read", shape);
}

}  // namespace glu_ckpt
