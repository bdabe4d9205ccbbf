#pragma once
/// The kernel of add_products(). A thread sums four neighbouring columns of four lines, so that a vector's four
/// elements are loaded once for sixteen products; a warp has 128 columns, a block the same columns of 32 lines. Each
/// step rounds as the CPU's does: `__fmaf_rn` with j ascending, then products and sums that nothing can fuse.

#include <cstddef>

#include "core/float_bits.hpp"
#include "kernels/quant/add_products.hpp"

namespace glu_ckpt::products {

constexpr int kThreads = 256;
constexpr u32 kLinesOfThread = 4, kColumnsOfThread = 4;
constexpr u32 kColumnsOfBlock = 32 * kColumnsOfThread, kLinesOfBlock = kThreads / 32 * kLinesOfThread;

/// The arguments of the kernel, made from a ProductBatch.
struct ProductArgs {
  ProductBuffers buffers;
  float scale = 1;
  bool rounds_product = false;
  ProductScales scales = ProductScales::None;
  u32 lines = 0;
  u32 cols = 0;
  u32 pitch = 0;
  u32 rank = 0;
  u32 blocks_of_lines = 0;
  u32* flag = nullptr;
};

inline ProductArgs product_args(const ProductBatch& batch) {
  ProductArgs args;
  args.scale = batch.merging.scale;
  args.rounds_product = batch.merging.rounds_product;
  args.scales = batch.scales;
  args.lines = static_cast<u32>(batch.lines);
  args.cols = static_cast<u32>(batch.cols);
  args.pitch = static_cast<u32>(batch.pitch());
  args.rank = static_cast<u32>(batch.rank);
  args.blocks_of_lines = (args.lines + kLinesOfBlock - 1) / kLinesOfBlock;
  return args;
}

inline i64 blocks_of(const ProductBatch& batch) {
  const i64 across = (batch.cols + kColumnsOfBlock - 1) / kColumnsOfBlock;
  return across * ((batch.lines + kLinesOfBlock - 1) / kLinesOfBlock);
}

/// Elements as bits of fp32, and back.
template <Dtype kDtype>
__device__ __forceinline__ float widen_bits(u32 bits) {
  if constexpr (kDtype == Dtype::BF16) return float_bits::from_bf16(static_cast<std::uint16_t>(bits));
  if constexpr (kDtype == Dtype::F16) return float_bits::from_f16(static_cast<std::uint16_t>(bits));
  return std::bit_cast<float>(bits);
}

template <Dtype kDtype>
__device__ __forceinline__ u32 narrow_bits(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  if constexpr (kDtype == Dtype::BF16) return round_to_bf16(bits);
  if constexpr (kDtype == Dtype::F16) return round_to_f16(bits);
  return bits;
}

struct Quad {
  float values[kColumnsOfThread];
};

template <Dtype kDtype>
__device__ __forceinline__ Quad load_quad(const std::byte* weights, i64 at) {
  if constexpr (kDtype == Dtype::F32) {
    const float4 four = *reinterpret_cast<const float4*>(weights + at * 4);
    return {{four.x, four.y, four.z, four.w}};
  } else {
    const uint2 four = *reinterpret_cast<const uint2*>(weights + at * 2);
    return {{widen_bits<kDtype>(four.x & 0xffff), widen_bits<kDtype>(four.x >> 16), widen_bits<kDtype>(four.y & 0xffff),
             widen_bits<kDtype>(four.y >> 16)}};
  }
}

template <Dtype kDtype>
__device__ __forceinline__ void store_quad(std::byte* weights, i64 at, const Quad& quad) {
  if constexpr (kDtype == Dtype::F32) {
    *reinterpret_cast<float4*>(weights + at * 4) = {quad.values[0], quad.values[1], quad.values[2], quad.values[3]};
  } else {
    u32 bits[kColumnsOfThread];
#pragma unroll
    for (u32 i = 0; i < kColumnsOfThread; ++i) bits[i] = narrow_bits<kDtype>(quad.values[i]);
    *reinterpret_cast<uint2*>(weights + at * 2) = {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
  }
}

/// Makes the stored values of four columns of one line from their sums over the rank.
template <Dtype kDtype>
__device__ __forceinline__ void finish_quad(const ProductArgs& args, u32 line, u32 col, Quad sums) {
  const i64 at = static_cast<i64>(line) * args.pitch + col;
  const Quad stored = load_quad<kDtype>(args.buffers.weights, at);
  bool is_nan = false;
#pragma unroll
  for (u32 i = 0; i < kColumnsOfThread; ++i) {
    float product = __fmul_rn(sums.values[i], args.scale);
    if (args.rounds_product) product = widen_bits<kDtype>(narrow_bits<kDtype>(product));
    float sum = __fadd_rn(stored.values[i], product);
    if (args.scales == ProductScales::OfLines) sum = __fmul_rn(sum, args.buffers.scales[line]);
    if (args.scales == ProductScales::OfColumns) sum = __fmul_rn(sum, args.buffers.scales[col + i]);
    sums.values[i] = sum;
    is_nan = is_nan || (col + i < args.cols && sum != sum);
  }
  if (is_nan) *args.flag = 1;
  store_quad<kDtype>(args.buffers.weights, at, sums);
}

template <Dtype kDtype>
__device__ __forceinline__ void add_products(const ProductArgs& args) {
  const u32 block_of_lines = blockIdx.x % args.blocks_of_lines, block_of_columns = blockIdx.x / args.blocks_of_lines;
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 col = block_of_columns * kColumnsOfBlock + lane * kColumnsOfThread;
  const u32 first = block_of_lines * kLinesOfBlock + warp * kLinesOfThread;
  if (col >= args.cols || first >= args.lines) return;
  Quad sums[kLinesOfThread] = {};
  const float* coefficients[kLinesOfThread];
#pragma unroll
  for (u32 i = 0; i < kLinesOfThread; ++i) {
    // Behind the last line its sums are made again, and not stored.
    const u32 line = first + i < args.lines ? first + i : args.lines - 1;
    coefficients[i] = args.buffers.coefficients + static_cast<i64>(line) * args.rank;
  }
  for (u32 j = 0; j < args.rank; ++j) {
    const float4 vector =
        *reinterpret_cast<const float4*>(args.buffers.vectors + static_cast<i64>(j) * args.pitch + col);
#pragma unroll
    for (u32 i = 0; i < kLinesOfThread; ++i) {
      const float coefficient = coefficients[i][j];
      float* const values = sums[i].values;
      values[0] = __fmaf_rn(coefficient, vector.x, values[0]);
      values[1] = __fmaf_rn(coefficient, vector.y, values[1]);
      values[2] = __fmaf_rn(coefficient, vector.z, values[2]);
      values[3] = __fmaf_rn(coefficient, vector.w, values[3]);
    }
  }
#pragma unroll
  for (u32 i = 0; i < kLinesOfThread; ++i)
    if (first + i < args.lines) finish_quad<kDtype>(args, first + i, col, sums[i]);
}

}  // namespace glu_ckpt::products
