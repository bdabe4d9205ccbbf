#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "glu_ckpt/error.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/common/random_fill.hpp"

namespace glu_ckpt {
namespace {

constexpr int kThreads = 256;
constexpr i64 kMostBlocks = i64{1} << 16;

/// The finalizer of MurmurHash3: every bit of the input changes about half of the output's.
__device__ u64 mixed(u64 bits) {
  bits ^= bits >> 33;
  bits *= 0xff51afd7ed558ccdULL;
  bits ^= bits >> 33;
  bits *= 0xc4ceb9fe1a85ec53ULL;
  return bits ^ bits >> 33;
}

/// The sum of four uniform numbers of 16 bits, around 0 and with deviation 1.
__device__ float near_normal(u64 bits) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff);
  constexpr float kMean = 2.0F * 65535.0F;
  constexpr float kDeviation = 37837.0F;  // sqrt(4 / 12) * 65536
  return (sum - kMean) / kDeviation;
}

__global__ void random_fill_kernel(uint4* data, i64 words, float deviation, u64 seed) {
  const i64 step = static_cast<i64>(gridDim.x) * kThreads;
  for (i64 i = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x; i < words; i += step) {
    __nv_bfloat16 values[8];
#pragma unroll
    for (int v = 0; v < 8; ++v)
      values[v] = __float2bfloat16(near_normal(mixed(seed ^ static_cast<u64>(8 * i + v))) * deviation);
    data[i] = *reinterpret_cast<const uint4*>(values);
  }
}

}  // namespace

void random_fill_bf16(void* data, i64 count, float deviation, u32 seed, GpuStream stream) {
  if (count == 0) return;
  const auto shape = [count] { return std::to_string(count) + " values"; };
  if (count < 0 || count % 8 != 0 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
    throw Error(ErrorCode::Usage, "random_fill_bf16: " + shape() + "; a multiple of 8 at an aligned address is needed");
  const i64 words = count / 8;
  const i64 blocks = std::min((words + kThreads - 1) / kThreads, kMostBlocks);
  random_fill_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(static_cast<uint4*>(data), words,
                                                                             deviation, static_cast<u64>(seed) << 32);
  check_launch("random_fill", shape);
}

}  // namespace glu_ckpt
