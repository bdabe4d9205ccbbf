#include <cuda_bf16.h>

#include <cstdint>
#include <limits>
#include <string>

#include "glu_ckpt/error.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/mlp/plain_swiglu.hpp"

namespace glu_ckpt {
namespace {

constexpr int kThreads = 256;
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
