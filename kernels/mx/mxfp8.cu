/// MXFP8 on the device. All of it waits for memory: a thread moves 16 bytes of the wider side at a time, and the lanes
/// that share a block of 32 elements find its largest one by shuffles. The rules for single numbers are those of
/// core/mxfp8_bits.hpp, but for the rounding to fp8, which later GPUs have an instruction for.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>
#include <type_traits>

#include "core/mxfp8_bits.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/common/fast_division.hpp"
#include "kernels/common/load_once.cuh"
#include "kernels/mx/mx_arguments.hpp"

namespace glu_ckpt {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;
/// 16-byte words that a thread has in flight.
constexpr int kWordsPerThread = 4;
/// Units are numbered with 32 bits; what has more does not fit any device, but goes the slow way all the same.
constexpr i64 kMostUnits = i64{1} << 31;

// ---- single numbers -----------------------------------------------------------------------------

__device__ __forceinline__ float widened(float value) { return value; }
__device__ __forceinline__ float widened(__half value) { return __half2float(value); }
__device__ __forceinline__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }

/// Codes of a (low byte) and b.
template <bool kE5m2Elements>
__device__ __forceinline__ u32 two_codes(float a, float b) {
#if __CUDA_ARCH__ >= 890
  u16 codes;
  if constexpr (kE5m2Elements) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(b), "f"(a));
  }
  // It is not documented for all formats which NaN the instruction makes.
  u32 word = codes;
  if (isnan(a)) word = (word & 0xff00U) | kFp8Nan;
  if (isnan(b)) word = (word & 0x00ffU) | u32{kFp8Nan} << 8;
  return word;
#else
  constexpr Fp8Format format = fp8_format(kE5m2Elements);
  return fp8_code(a, format) | static_cast<u32>(fp8_code(b, format)) << 8;
#endif
}

/// Codes of x[0..3] * scale[0..3].
template <bool kE5m2Elements>
__device__ __forceinline__ u32 four_codes(const float* x, const float (&scale)[4]) {
  return two_codes<kE5m2Elements>(x[0] * scale[0], x[1] * scale[1]) |
         two_codes<kE5m2Elements>(x[2] * scale[2], x[3] * scale[3]) << 16;
}

/// fmaxf takes the other one of a NaN.
__device__ __forceinline__ float larger(float most, float value) { return fmaxf(most, fabsf(value)); }

template <bool kE5m2Elements>
__device__ __forceinline__ u8 scale_byte(float most) {
  constexpr float inverse_max = fp8_format(kE5m2Elements).inverse_max;
  return e8m0_bits(most * inverse_max);
}

__device__ __forceinline__ float inverse_of(u8 e) { return __uint_as_float(e8m0_inverse_bits(e)); }

template <bool kE5m2Elements>
__device__ __forceinline__ float product_of(u8 code, u8 e) {
  constexpr Fp8Format format = fp8_format(kE5m2Elements);
  const float value = fp8_decoded(code, format) * __uint_as_float(e8m0_value_bits(e));
  return isnan(value) ? __uint_as_float(kF32Nan) : value;
}

__device__ __forceinline__ u32 bf16_bits(float value) {
  const u32 bits = __float_as_uint(value);
  return isnan(value) ? kF32Nan >> 16 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

__device__ __forceinline__ void store_value(float* to, float value) { *to = value; }
__device__ __forceinline__ void store_value(u16* to, float value) { *to = static_cast<u16>(bf16_bits(value)); }

// ---- quantize -----------------------------------------------------------------------------------

/// 16 bytes of values.
template <typename Value>
struct Values {
  static constexpr int kCount = 16 / sizeof(Value);
  float x[kCount];

  __device__ __forceinline__ explicit Values(const uint4& word) {
    const Value* values = reinterpret_cast<const Value*>(&word);
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = widened(values[i]);
  }
};

/// Blocks along rows. Elements are numbered through, as rows are whole blocks; unit u is 16 bytes of values.
template <typename Value, bool kE5m2Elements>
__global__ void __launch_bounds__(kThreads) quantize_rows_kernel(const uint4* values, u8* data, u8* scales, u32 units,
                                                                 FastDivision row_blocks, i64 scale_step) {
  constexpr int kCount = Values<Value>::kCount;
  constexpr int kLanes = kMxBlock / kCount;
  const u32 first = blockIdx.x * (kThreads * kWordsPerThread) + threadIdx.x;
  uint4 words[kWordsPerThread];
#pragma unroll
  for (int w = 0; w < kWordsPerThread; ++w) {
    const u32 unit = first + w * kThreads;
    words[w] = unit < units ? load_once(values + unit) : uint4{0, 0, 0, 0};
  }
#pragma unroll
  for (int w = 0; w < kWordsPerThread; ++w) {
    const u32 unit = first + w * kThreads;
    const Values<Value> in(words[w]);
    float most = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) most = larger(most, in.x[i]);
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    if (unit >= units) continue;
    const u8 e = scale_byte<kE5m2Elements>(most);
    const float inverse = inverse_of(e);
    const float each[4] = {inverse, inverse, inverse, inverse};
    u32 codes[kCount / 4];
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) codes[i] = four_codes<kE5m2Elements>(in.x + 4 * i, each);
    if constexpr (kCount == 8)
      reinterpret_cast<uint2*>(data)[unit] = uint2{codes[0], codes[1]};
    else
      reinterpret_cast<u32*>(data)[unit] = codes[0];
    if (unit % kLanes != 0) continue;
    const u32 block = unit / kLanes;
    const u32 row = row_blocks.quotient(block);
    scales[row * scale_step + (block - row * row_blocks.divisor)] = e;
  }
}

/// Blocks along columns: a warp takes 32 rows of 64 columns, a lane 8 rows of 8 of them.
constexpr int kTileCols = 64;

template <typename Value, bool kE5m2Elements>
__global__ void __launch_bounds__(kThreads)
    quantize_columns_kernel(const Value* values, u8* data, u8* scales, u32 tiles, FastDivision row_tiles, i64 cols,
                            i64 scale_step) {
  constexpr int kSide = 8;
  constexpr int kWords = kSide * sizeof(Value) / 16;
  const u32 tile = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (tile >= tiles) return;
  const u32 tile_row = row_tiles.quotient(tile);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const i64 col = static_cast<i64>(tile - tile_row * row_tiles.divisor) * kTileCols + lane % kSide * kSide;
  const i64 row = static_cast<i64>(tile_row) * kMxBlock + lane / kSide * kSide;
  const bool inside = col < cols;
  uint4 words[kSide][kWords];
  float most[kSide] = {};
#pragma unroll
  for (int r = 0; r < kSide; ++r)
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      words[r][w] =
          inside ? load_once(reinterpret_cast<const uint4*>(values + (row + r) * cols + col) + w) : uint4{0, 0, 0, 0};
  constexpr int kCount = Values<Value>::kCount;
#pragma unroll
  for (int r = 0; r < kSide; ++r)
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const Values<Value> in(words[r][w]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) most[w * kCount + i] = larger(most[w * kCount + i], in.x[i]);
    }
  u32 bytes[2] = {};
  float inverse[2][4];
#pragma unroll
  for (int c = 0; c < kSide; ++c) {
    most[c] = fmaxf(most[c], __shfl_xor_sync(kAllLanes, most[c], 8));
    most[c] = fmaxf(most[c], __shfl_xor_sync(kAllLanes, most[c], 16));
    const u8 e = scale_byte<kE5m2Elements>(most[c]);
    bytes[c / 4] |= static_cast<u32>(e) << (8 * (c % 4));
    inverse[c / 4][c % 4] = inverse_of(e);
  }
  if (!inside) return;
  if (lane < kSide) *reinterpret_cast<uint2*>(scales + tile_row * scale_step + col) = uint2{bytes[0], bytes[1]};
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
    float x[kSide];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const Values<Value> in(words[r][w]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[w * kCount + i] = in.x[i];
    }
    *reinterpret_cast<uint2*>(data + (row + r) * cols + col) =
        uint2{four_codes<kE5m2Elements>(x, inverse[0]), four_codes<kE5m2Elements>(x + 4, inverse[1])};
  }
}

/// A thread for each block, whatever the sizes and addresses.
template <typename Value, bool kE5m2Elements>
__global__ void __launch_bounds__(kThreads)
    quantize_any_kernel(const Value* values, u8* data, u8* scales, i64 blocks, MxExtents extents, bool by_row, i64 cols,
                        i64 scale_step) {
  const i64 block = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  if (block >= blocks) return;
  const i64 s = block / extents.cols;
  const i64 t = block % extents.cols;
  const i64 first = by_row ? s * cols + t * kMxBlock : s * kMxBlock * cols + t;
  const i64 step = by_row ? 1 : cols;
  float most = 0;
  for (int i = 0; i < kMxBlock; ++i) most = larger(most, widened(values[first + i * step]));
  const u8 e = scale_byte<kE5m2Elements>(most);
  const float inverse = inverse_of(e);
  scales[s * scale_step + t] = e;
  for (int i = 0; i < kMxBlock; ++i)
    data[first + i * step] =
        static_cast<u8>(two_codes<kE5m2Elements>(widened(values[first + i * step]) * inverse, 0.0F));
}

// ---- dequantize ---------------------------------------------------------------------------------

/// Unit u makes 16 bytes of values; `row_units` of them are a row.
template <typename Value, bool kE5m2Elements, bool kByRow>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const u8* data, const u8* scales, uint4* values,
                                                              u32 units, FastDivision row_units, i64 scale_step) {
  constexpr int kCount = 16 / sizeof(Value);
  using Codes = std::conditional_t<kCount == 8, uint2, u32>;
  const u32 first = blockIdx.x * (kThreads * kWordsPerThread) + threadIdx.x;
  Codes codes[kWordsPerThread];
  Codes bytes[kWordsPerThread];
#pragma unroll
  for (int w = 0; w < kWordsPerThread; ++w) {
    const u32 unit = first + w * kThreads;
    if (unit >= units) break;
    const u32 row = row_units.quotient(unit);
    const i64 col = static_cast<i64>(unit - row * row_units.divisor) * kCount;
    codes[w] = load_once(reinterpret_cast<const Codes*>(data) + unit);
    if constexpr (kByRow)
      *reinterpret_cast<u8*>(&bytes[w]) = scales[row * scale_step + col / kMxBlock];
    else
      bytes[w] = *reinterpret_cast<const Codes*>(scales + row / kMxBlock * scale_step + col);
  }
#pragma unroll
  for (int w = 0; w < kWordsPerThread; ++w) {
    const u32 unit = first + w * kThreads;
    if (unit >= units) break;
    const u8* code = reinterpret_cast<const u8*>(&codes[w]);
    const u8* byte = reinterpret_cast<const u8*>(&bytes[w]);
    uint4 word;
    Value* out = reinterpret_cast<Value*>(&word);
#pragma unroll
    for (int i = 0; i < kCount; ++i) store_value(out + i, product_of<kE5m2Elements>(code[i], byte[kByRow ? 0 : i]));
    __stcs(values + unit, word);
  }
}

/// A thread for each element.
template <typename Value, bool kE5m2Elements>
__global__ void __launch_bounds__(kThreads) dequantize_any_kernel(const u8* data, const u8* scales, Value* values,
                                                                  i64 count, bool by_row, i64 cols, i64 scale_step) {
  const i64 at = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const i64 row = at / cols;
  const i64 col = at % cols;
  const u8 e = by_row ? scales[row * scale_step + col / kMxBlock] : scales[row / kMxBlock * scale_step + col];
  store_value(values + at, product_of<kE5m2Elements>(data[at], e));
}

// ---- swizzle ------------------------------------------------------------------------------------

/// Scales (i, j): i along the axis without blocks, j blocks. Extents of what is stored, and of the compact matrix.
struct SwizzleShape {
  i64 outer;
  i64 inner;
  i64 compact_cols;
  /// The tiles of 4 j's.
  i64 tiles;
  bool by_row;
};

__device__ __forceinline__ u32 scales_inside(i64 count) {
  return count >= 4 ? kAllLanes : count <= 0 ? 0U : (1U << (8 * count)) - 1;
}

/// A thread for 16 swizzled bytes: 4 i's, 32 apart, of 4 j's.
__global__ void __launch_bounds__(kThreads)
    swizzle_kernel(const u8* compact, uint4* swizzled, i64 units, const __grid_constant__ SwizzleShape shape) {
  const i64 unit = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  if (unit >= units) return;
  const i64 tile = unit / 32;
  const i64 j = tile % shape.tiles * 4;
  u32 words[4];
#pragma unroll
  for (int group = 0; group < 4; ++group) {
    const i64 i = tile / shape.tiles * 128 + group * 32 + unit % 32;
    u32 word = 0;
    if (i < shape.outer) {
      if (shape.by_row) {
        word = *reinterpret_cast<const u32*>(compact + i * shape.compact_cols + j) & scales_inside(shape.inner - j);
      } else {
        for (int k = 0; k < 4; ++k)
          if (j + k < shape.inner) word |= static_cast<u32>(compact[(j + k) * shape.compact_cols + i]) << (8 * k);
      }
    }
    words[group] = word;
  }
  swizzled[unit] = uint4{words[0], words[1], words[2], words[3]};
}

/// A thread for 4 compact bytes.
__global__ void __launch_bounds__(kThreads)
    unswizzle_kernel(const u8* swizzled, u32* compact, i64 units, const __grid_constant__ SwizzleShape shape) {
  const i64 unit = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  if (unit >= units) return;
  const i64 row = unit / (shape.compact_cols / 4);
  const i64 col = unit % (shape.compact_cols / 4) * 4;
  u32 word = 0;
  if (shape.by_row && row < shape.outer) {
    word = *reinterpret_cast<const u32*>(swizzled + mx_swizzled_offset(row, col, shape.tiles)) &
           scales_inside(shape.inner - col);
  } else if (!shape.by_row && row < shape.inner) {
    for (int k = 0; k < 4; ++k)
      if (col + k < shape.outer)
        word |= static_cast<u32>(swizzled[mx_swizzled_offset(col + k, row, shape.tiles)]) << (8 * k);
  }
  compact[unit] = word;
}

/// A thread for each compact byte and its place, whatever the addresses.
__global__ void __launch_bounds__(kThreads)
    swizzle_any_kernel(const u8* from, u8* to, i64 count, bool back, const __grid_constant__ SwizzleShape shape) {
  const i64 at = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const i64 row = at / shape.compact_cols;
  const i64 col = at % shape.compact_cols;
  const i64 i = shape.by_row ? row : col;
  const i64 j = shape.by_row ? col : row;
  const i64 swizzled = mx_swizzled_offset(i, j, shape.tiles);
  const i64 src = back ? swizzled : at;
  to[back ? at : swizzled] = i < shape.outer && j < shape.inner ? from[src] : u8{0};
}

// ---- launching ----------------------------------------------------------------------------------

unsigned grid_of(i64 units, int per_block) { return static_cast<unsigned>((units + per_block - 1) / per_block); }

bool aligned(const void* data, u64 bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

std::string describe(const MxFormat& format) {
  std::string text = std::to_string(format.rows) + " x " + std::to_string(format.cols) + " of ";
  text += dtype_name(format.element);
  return text + (format.axis == MxAxis::Row ? " in blocks of 1 x 32" : " in blocks of 32 x 1");
}

void check(const char* kernel, const MxFormat& format) {
  check_launch(kernel, [&] { return describe(format); });
}

/// Calls `launch` with a value of the stored type and whether elements are E5M2, as types.
template <typename Launch>
void with_types(Dtype dtype, const MxFormat& format, const Launch& launch) {
  const auto of_value = [&](auto value) {
    if (format.element == Dtype::F8_E5M2)
      launch(value, std::true_type{});
    else
      launch(value, std::false_type{});
  };
  if (dtype == Dtype::BF16) return of_value(__nv_bfloat16{});
  if (dtype == Dtype::F16) return of_value(__half{});
  of_value(float{});
}

struct QuantizeCall {
  const MxFormat& format;
  const void* values;
  u8* data;
  u8* scales;
  i64 scale_step;
  GpuStream stream;

  i64 count() const { return format.rows * format.cols; }

  template <typename Value, bool kE5m2Elements>
  void rows() const {
    const i64 units = count() / Values<Value>::kCount;
    quantize_rows_kernel<Value, kE5m2Elements><<<grid_of(units, kThreads * kWordsPerThread), kThreads, 0, stream>>>(
        static_cast<const uint4*>(values), data, scales, static_cast<u32>(units),
        FastDivision(static_cast<u32>(format.cols / kMxBlock)), scale_step);
    check("mx_quantize_rows", format);
  }

  template <typename Value, bool kE5m2Elements>
  void columns() const {
    const i64 row_tiles = (format.cols + kTileCols - 1) / kTileCols;
    const i64 tiles = format.rows / kMxBlock * row_tiles;
    quantize_columns_kernel<Value, kE5m2Elements><<<grid_of(tiles, kThreads / kWarp), kThreads, 0, stream>>>(
        static_cast<const Value*>(values), data, scales, static_cast<u32>(tiles),
        FastDivision(static_cast<u32>(row_tiles)), format.cols, scale_step);
    check("mx_quantize_columns", format);
  }

  template <typename Value, bool kE5m2Elements>
  void any() const {
    const MxExtents extents = mx_scale_extents(format);
    const i64 blocks = extents.rows * extents.cols;
    quantize_any_kernel<Value, kE5m2Elements><<<grid_of(blocks, kThreads), kThreads, 0, stream>>>(
        static_cast<const Value*>(values), data, scales, blocks, extents, format.axis == MxAxis::Row, format.cols,
        scale_step);
    check("mx_quantize_any", format);
  }

  template <typename Value, bool kE5m2Elements>
  void run() const {
    const bool wide = aligned(values, 16) && aligned(data, 8) && count() / Values<Value>::kCount < kMostUnits;
    if (wide && format.axis == MxAxis::Row) return rows<Value, kE5m2Elements>();
    const bool even = format.cols % 8 == 0 && scale_step % 8 == 0 && aligned(scales, 8);
    if (wide && even && format.axis == MxAxis::Column) return columns<Value, kE5m2Elements>();
    any<Value, kE5m2Elements>();
  }
};

SwizzleShape swizzle_shape(const MxFormat& format) {
  const MxExtents stored = mx_scale_extents(format);
  const MxExtents compact = mx_compact_extents(format);
  const bool by_row = format.axis == MxAxis::Row;
  if (by_row) return {stored.rows, stored.cols, compact.cols, compact.cols / 4, true};
  return {stored.cols, stored.rows, compact.cols, compact.rows / 4, false};
}

i64 compact_bytes(const MxFormat& format) {
  const MxExtents compact = mx_compact_extents(format);
  return compact.rows * compact.cols;
}

void swizzle_any(const MxFormat& format, const u8* from, u8* to, bool back, GpuStream stream) {
  const i64 count = compact_bytes(format);
  swizzle_any_kernel<<<grid_of(count, kThreads), kThreads, 0, stream>>>(from, to, count, back, swizzle_shape(format));
  check("mx_swizzle_any", format);
}

}  // namespace

void mx_quantize(const MxFormat& format, const void* values, Dtype from, u8* data, u8* scales, i64 scale_step,
                 GpuStream stream) {
  if (mx_scale_extents(format).rows == 0 || format.cols == 0) return;
  check_mx_call("mx_quantize", format, from, true, scale_step,
                {{"values", values, from == Dtype::F32 ? 4 : 2}, {"data", data, 1}, {"scales", scales, 1}});
  const QuantizeCall call{format, values, data, scales, scale_step, stream};
  with_types(from, format, [&](auto value, auto e5m2) { call.run<decltype(value), decltype(e5m2)::value>(); });
}

void mx_dequantize(const MxFormat& format, const u8* data, const u8* scales, i64 scale_step, void* values, Dtype to,
                   GpuStream stream) {
  if (mx_scale_extents(format).rows == 0 || format.cols == 0) return;
  check_mx_call("mx_dequantize", format, to, false, scale_step,
                {{"values", values, to == Dtype::F32 ? 4 : 2}, {"data", data, 1}, {"scales", scales, 1}});
  const i64 count = format.rows * format.cols;
  const bool by_row = format.axis == MxAxis::Row;
  const auto launch = [&](auto value, auto e5m2) {
    using Value = decltype(value);
    constexpr bool kE5m2Elements = decltype(e5m2)::value;
    constexpr i64 kCount = 16 / sizeof(Value);
    const bool wide =
        aligned(values, 16) && aligned(data, 8) && count / kCount < kMostUnits && format.cols % kCount == 0;
    if (wide && (by_row || (aligned(scales, 8) && scale_step % 8 == 0))) {
      const auto kernel =
          by_row ? dequantize_kernel<Value, kE5m2Elements, true> : dequantize_kernel<Value, kE5m2Elements, false>;
      const i64 units = count / kCount;
      kernel<<<grid_of(units, kThreads * kWordsPerThread), kThreads, 0, stream>>>(
          data, scales, static_cast<uint4*>(values), static_cast<u32>(units),
          FastDivision(static_cast<u32>(format.cols / kCount)), scale_step);
      check("mx_dequantize", format);
    } else {
      dequantize_any_kernel<Value, kE5m2Elements><<<grid_of(count, kThreads), kThreads, 0, stream>>>(
          data, scales, static_cast<Value*>(values), count, by_row, format.cols, scale_step);
      check("mx_dequantize_any", format);
    }
  };
  // This path makes bf16 from bits.
  const auto by_element = [&](auto value) {
    if (format.element == Dtype::F8_E5M2)
      launch(value, std::true_type{});
    else
      launch(value, std::false_type{});
  };
  if (to == Dtype::BF16) return by_element(u16{});
  by_element(float{});
}

void mx_swizzle(const MxFormat& format, const u8* compact, u8* swizzled, GpuStream stream) {
  const i64 bytes = compact_bytes(format);
  if (bytes == 0) return;
  check_mx_call("mx_swizzle", format, std::nullopt, false, mx_compact_extents(format).cols,
                {{"compact", compact, 1}, {"swizzled", swizzled, 1}});
  if (!aligned(compact, 4) || !aligned(swizzled, 16)) return swizzle_any(format, compact, swizzled, false, stream);
  swizzle_kernel<<<grid_of(bytes / 16, kThreads), kThreads, 0, stream>>>(compact, reinterpret_cast<uint4*>(swizzled),
                                                                         bytes / 16, swizzle_shape(format));
  check("mx_swizzle", format);
}

void mx_unswizzle(const MxFormat& format, const u8* swizzled, u8* compact, GpuStream stream) {
  const i64 bytes = compact_bytes(format);
  if (bytes == 0) return;
  check_mx_call("mx_unswizzle", format, std::nullopt, false, mx_compact_extents(format).cols,
                {{"swizzled", swizzled, 1}, {"compact", compact, 1}});
  if (!aligned(compact, 4) || !aligned(swizzled, 4)) return swizzle_any(format, swizzled, compact, true, stream);
  unswizzle_kernel<<<grid_of(bytes / 4, kThreads), kThreads, 0, stream>>>(swizzled, reinterpret_cast<u32*>(compact),
                                                                          bytes / 4, swizzle_shape(format));
  check("mx_unswizzle", format);
}

}  // namespace glu_ckpt
