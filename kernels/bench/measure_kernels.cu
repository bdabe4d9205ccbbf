/// The kernels that others are measured against, and the data that they are measured with.

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "glu_ckpt/error.hpp"
#include "kernels/bench/measure_kernels.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/common/load_once.cuh"

namespace glu_ckpt {
namespace {

constexpr int kThreads = 256;
/// Loads of 16 bytes that each thread has in flight: eight blocks of 32 KiB on a multiprocessor are several times what
/// hides the latency of an H200's memory.
constexpr int kLoads = 8;

/// A block reads its own 32 KiB and ends, so that blocks nearer to the memory take more of them.
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

/// Columns that a thread computes: 16 bytes of each of gate, linear term and result.
constexpr i64 kCols = 8;

struct alignas(16) Word {
  __nv_bfloat16 values[kCols];
};

__global__ void __launch_bounds__(kThreads)
    plain_swiglu_kernel(const Word* z, const float* probs, u32 words, u32 words_per_row, u32 words_per_block, Word* y) {
  const u32 i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= words) return;
  const u32 row = i / words_per_row, word = i % words_per_row;
  // Each block of gates before this one has a block of linear terms behind it.
  const i64 at = i64{2} * row * words_per_row + word / words_per_block * words_per_block + word;
  const Word gate = z[at], linear = z[at + words_per_block];
  const float p = __bfloat162float(__float2bfloat16(probs[row]));
  Word result;
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    const float a = __bfloat162float(gate.values[c]), u = __bfloat162float(linear.values[c]);
    result.values[c] = __float2bfloat16(a * (1.0F / (1.0F + __expf(-a))) * u * p);
  }
  y[i] = result;
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

void plain_swiglu(const void* z, const float* probs, i64 rows, i64 width, i64 block_cols, void* y, GpuStream stream) {
  if (rows == 0) return;
  const auto shape = [=] {
    return std::to_string(rows) + " rows of 2 * " + std::to_string(width) + " in blocks of " +
           std::to_string(block_cols);
  };
  if (rows < 0 || width < 1 || block_cols < kCols || block_cols % kCols != 0 || width % block_cols != 0)
    throw Error(ErrorCode::Usage, "plain_swiglu: " + shape() + "; blocks are multiples of 8 and divide the width");
  const i64 words = rows * (width / kCols);
  // Divisions of 64 bits would take as long as the memory.
  if (words > std::numeric_limits<int>::max())
    throw Error(ErrorCode::Usage, "plain_swiglu: " + shape() + ": too many for one launch");
  plain_swiglu_kernel<<<static_cast<unsigned>((words + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      static_cast<const Word*>(z), probs, static_cast<u32>(words), static_cast<u32>(width / kCols),
      static_cast<u32>(block_cols / kCols), static_cast<Word*>(y));
  check_launch("plain_swiglu", shape);
}

}  // namespace glu_ckpt
