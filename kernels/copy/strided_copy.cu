/// One thread moves one or two words. Words are numbered run by run, in the order of the shape's loops.

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "kernels/common/cuda_check.hpp"
#include "kernels/common/fast_division.hpp"
#include "kernels/common/load_once.cuh"
#include "kernels/copy/strided_copy.hpp"

namespace glu_ckpt {
namespace {

/// 128 threads a block. On an H200, of cudaMemcpyAsync in the same run: for [64, 4096, 7168] bf16 at K = 32, 8 and 1
/// one word a thread reaches 0.995 and two 0.992, for one expert of 59 MB two reach 0.98 and one 0.97. 256 threads and
/// 4 words: 0.976; 1024 and 4: 0.985, but 0.92 of a copy of 6 MB; a persistent grid of bulk (TMA) copies through shared
/// memory: 0.91.
constexpr int kThreads = 128;
/// A copy of so many bytes is bound by device memory alone, and one word a thread is enough.
constexpr i64 kOneWordBytes = i64{256} << 20;

/// Copies by the widest words have the most kernels: one for each of the common shapes, where the others take the next
/// larger one.
constexpr std::size_t kWideWordBytes = 16;

/// Numbers of words and runs are 32 bits on the device; larger copies are cut on the host.
constexpr i64 kMaxWordsPerPair = i64{1} << 31;

struct KernelDim {
  FastDivision count;
  i64 src_step = 0;
  i64 dst_step = 0;
};

/// Steps in bytes. dims[0] is the innermost loop over runs.
struct KernelShape {
  FastDivision run_words;
  u32 words = 0;
  KernelDim dims[kMaxCopyDims];
};

template <int kPairs>
struct KernelPairs {
  CopyPair pair[kPairs];
};

/// The offsets of word `index` on both sides.
template <typename Word, int kDims>
__device__ __forceinline__ void locate(const KernelShape& shape, u32 index, i64& src, i64& dst) {
  u32 run = shape.run_words.quotient(index);
  const u32 word = index - run * shape.run_words.divisor;
  src = dst = static_cast<i64>(word) * static_cast<i64>(sizeof(Word));
#pragma unroll
  for (int d = 0; d < kDims; ++d) {
    // The outermost loop takes what is left.
    const u32 outer = d + 1 < kDims ? shape.dims[d].count.quotient(run) : 0;
    const u32 i = run - outer * shape.dims[d].count.divisor;
    src += i * shape.dims[d].src_step;
    dst += i * shape.dims[d].dst_step;
    run = outer;
  }
}

template <typename Word, int kDims, int kPairs, int kWordsPerThread>
__global__ void __launch_bounds__(kThreads)
    strided_copy_kernel(const __grid_constant__ KernelShape shape, const __grid_constant__ KernelPairs<kPairs> pairs) {
  const CopyPair pair = pairs.pair[kPairs == 1 ? 0 : blockIdx.y];
  const u32 first = blockIdx.x * (kThreads * kWordsPerThread) + threadIdx.x;
  Word words[kWordsPerThread];
  i64 dst[kWordsPerThread];
#pragma unroll
  for (int w = 0; w < kWordsPerThread; ++w) {
    const u32 index = first + w * kThreads;
    i64 src;
    locate<Word, kDims>(shape, index, src, dst[w]);
    if (index < shape.words) words[w] = load_once(reinterpret_cast<const Word*>(pair.src + src));
  }
#pragma unroll
  for (int w = 0; w < kWordsPerThread; ++w)
    if (first + w * kThreads < shape.words) __stcs(reinterpret_cast<Word*>(pair.dst + dst[w]), words[w]);
}

std::string describe(const CopyShape& shape, std::size_t pairs) {
  std::string text = std::to_string(pairs) + " x [";
  for (int d = 0; d < shape.num_dims; ++d) text += std::to_string(shape.dims[static_cast<std::size_t>(d)].count) + ", ";
  return text + std::to_string(shape.run_bytes) + " bytes]";
}

template <typename Word, int kDims, int kPairs, int kWordsPerThread>
void launch(const CopyShape& shape, const KernelShape& kernel_shape, std::span<const CopyPair> pairs,
            cudaStream_t stream) {
  constexpr u32 kWordsPerBlock = kThreads * kWordsPerThread;
  KernelPairs<kPairs> arguments;
  std::copy(pairs.begin(), pairs.end(), arguments.pair);
  const dim3 grid((kernel_shape.words + kWordsPerBlock - 1) / kWordsPerBlock, static_cast<unsigned>(pairs.size()));
  strided_copy_kernel<Word, kDims, kPairs, kWordsPerThread><<<grid, kThreads, 0, stream>>>(kernel_shape, arguments);
  check_launch("strided_copy", [&] { return describe(shape, pairs.size()); });
}

template <typename Word, int kDims>
void launch_pairs(const CopyShape& shape, const KernelShape& kernel_shape, std::span<const CopyPair> pairs,
                  cudaStream_t stream) {
  if (pairs.size() == 1) {
    if constexpr (sizeof(Word) == kWideWordBytes)
      if (shape.bytes() >= kOneWordBytes) return launch<Word, kDims, 1, 1>(shape, kernel_shape, pairs, stream);
    return launch<Word, kDims, 1, 2>(shape, kernel_shape, pairs, stream);
  }
  for (std::size_t first = 0; first < pairs.size(); first += kMaxPairsPerLaunch)
    launch<Word, kDims, kMaxPairsPerLaunch, 2>(
        shape, kernel_shape, pairs.subspan(first, std::min<std::size_t>(kMaxPairsPerLaunch, pairs.size() - first)),
        stream);
}

template <typename Word>
void launch_words(const CopyShape& shape, std::span<const CopyPair> pairs, cudaStream_t stream) {
  constexpr i64 kBytes = sizeof(Word);
  KernelShape kernel_shape;
  kernel_shape.run_words = FastDivision(static_cast<u32>(shape.run_bytes / kBytes));
  kernel_shape.words = static_cast<u32>(shape.bytes() / kBytes);
  for (int d = 0; d < shape.num_dims; ++d) {
    const MoveDim& dim = shape.dims[static_cast<std::size_t>(shape.num_dims - 1 - d)];
    kernel_shape.dims[d] = {FastDivision(static_cast<u32>(dim.count)), dim.src_step, dim.dst_step};
  }
  // Unused loops have count 1 and step 0, so a kernel with more loops than the shape is right, only slower.
  if (shape.num_dims <= 2) return launch_pairs<Word, 2>(shape, kernel_shape, pairs, stream);
  if constexpr (sizeof(Word) == kWideWordBytes)
    if (shape.num_dims == 3) return launch_pairs<Word, 3>(shape, kernel_shape, pairs, stream);
  launch_pairs<Word, kMaxCopyDims>(shape, kernel_shape, pairs, stream);
}

/// Halves the outermost loop, or the run, until a pair's words can be numbered.
template <typename Word>
void launch_parts(const CopyShape& shape, std::span<const CopyPair> pairs, cudaStream_t stream) {
  constexpr i64 kBytes = sizeof(Word);
  if (shape.bytes() / kBytes < kMaxWordsPerPair) return launch_words<Word>(shape, pairs, stream);
  CopyShape low = shape, high = shape;
  MoveDim past;
  const auto loop = std::find_if(low.dims.begin(), low.dims.end(), [](const MoveDim& dim) { return dim.count > 1; });
  if (loop != low.dims.end()) {
    loop->count /= 2;
    high.dims[static_cast<std::size_t>(loop - low.dims.begin())].count -= loop->count;
    past = {1, loop->src_step * loop->count, loop->dst_step * loop->count};
  } else {
    low.run_bytes = shape.run_bytes / 2 / kBytes * kBytes;
    high.run_bytes -= low.run_bytes;
    past = {1, low.run_bytes, low.run_bytes};
  }
  std::vector<CopyPair> moved(pairs.begin(), pairs.end());
  for (CopyPair& pair : moved) pair = {pair.src + past.src_step, pair.dst + past.dst_step};
  launch_parts<Word>(low, pairs, stream);
  launch_parts<Word>(high, moved, stream);
}

}  // namespace

void strided_copy(const CopyBatch& batch, GpuStream stream) {
  if (batch.bytes() == 0) return;
  switch (copy_word_bytes(batch)) {
    case 16: return launch_parts<uint4>(batch.shape, batch.pairs, stream);
    case 8: return launch_parts<uint2>(batch.shape, batch.pairs, stream);
    case 4: return launch_parts<u32>(batch.shape, batch.pairs, stream);
    case 2: return launch_parts<std::uint16_t>(batch.shape, batch.pairs, stream);
    default: return launch_parts<std::uint8_t>(batch.shape, batch.pairs, stream);
  }
}

}  // namespace glu_ckpt
