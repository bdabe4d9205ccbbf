/// Quantized weights on the device. All of it waits for memory: a thread makes 16 bytes of the decoded weight from one
/// load of codes and one scale. Products are rounded as on the CPU: to fp32, then to fp16 where that is asked for, then
/// to bf16, never fused.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "core/coded_weight.hpp"
#include "core/mxfp8_bits.hpp"
#include "kernels/common/cuda_check.hpp"
#include "kernels/common/fast_division.hpp"
#include "kernels/common/load_once.cuh"
#include "kernels/quant/coded_words.hpp"
#include "kernels/quant/decoded_values.cuh"

namespace glu_ckpt {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;

constexpr int kThreads = 128;
/// Units are numbered with 32 bits; what has more takes the kernel for single elements.
constexpr i64 kMostUnits = i64{1} << 31;

constexpr bool in_halves(Codes codes) { return codes == Codes::E2m1 || codes == Codes::Int4; }

// ---- scales -------------------------------------------------------------------------------------

/// CodedWeight's scales as a kernel takes them.
struct ScaleRule {
  const u8* scales;
  const float* globals;
  Dtype dtype;
  bool divides;
  bool rounds_to_bf16;
};

__device__ __forceinline__ float fp8_number(u8 code, __nv_fp8_interpretation_t format) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, format)));
}

__device__ __forceinline__ float stored_scale(const ScaleRule& rule, i64 cell) {
  if (rule.dtype == Dtype::F32) return __ldg(reinterpret_cast<const float*>(rule.scales) + cell);
  if (rule.dtype == Dtype::BF16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(rule.scales)[cell]);
  if (rule.dtype == Dtype::F16) return __half2float(reinterpret_cast<const __half*>(rule.scales)[cell]);
  const u8 code = __ldg(rule.scales + cell);
  if (rule.dtype == Dtype::F8_E4M3) return fp8_number(code, __NV_E4M3);
  return __uint_as_float(e8m0_value_bits(code));
}

__device__ __forceinline__ float scale_of(const ScaleRule& rule, i64 cell, i64 matrix) {
  float scale = stored_scale(rule, cell);
  if (rule.globals != nullptr) {
    const float global = __ldg(rule.globals + matrix);
    scale = rule.divides ? __fdiv_rn(scale, global) : __fmul_rn(scale, global);
  }
  return rule.rounds_to_bf16 ? __bfloat162float(__float2bfloat16_rn(scale)) : scale;
}

// ---- codes --------------------------------------------------------------------------------------

/// `zero` is -0, or +0 where code 8 of E2m1 is to be +0: it is added.
template <Codes kCodes>
__device__ __forceinline__ float number_of(u32 code, float zero) {
  if constexpr (kCodes == Codes::E4m3) return fp8_number(static_cast<u8>(code), __NV_E4M3);
  if constexpr (kCodes == Codes::E5m2) return fp8_number(static_cast<u8>(code), __NV_E5M2);
  if constexpr (kCodes == Codes::Int8) return static_cast<float>(static_cast<signed char>(code));
  if constexpr (kCodes == Codes::Int4) return static_cast<float>(static_cast<int>(code & 15) - 8);
  // As fp32 the bits are 2^126 times too small, subnormal code or not.
  const float small = __uint_as_float((code & 7) << 22 | (code & 8) << 28);
  return __fmaf_rn(small, 0x1p126F, zero);
}

template <Codes kCodes>
__device__ __forceinline__ float number_at(u32 word, int i, float zero) {
  return number_of<kCodes>(in_halves(kCodes) ? word >> (4 * i) & 15 : word >> (8 * i) & 0xff, zero);
}

/// Four bytes out of the eight of `low` and `high`, by the nibbles of `selector`; one whose upper bit is set repeats
/// the sign of its byte, which __byte_perm() does not do.
__device__ __forceinline__ u32 permuted(u32 low, u32 high, u32 selector) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

/// Eight codes of E2m1 as bf16, which holds all of them, two in a word. Both bytes are looked up; the sign is that of a
/// byte whose bits are one or all set.
__device__ __forceinline__ void e2m1_as_bf16(u32 codes, bool positive_zero, u32 (&pairs)[4]) {
  constexpr u32 kMagnitudes = 0x7777'7777, kSigns = 0x8888'8888, kTop = 0x8080'8080;
  const u32 magnitudes = codes & kMagnitudes;
  if (positive_zero) codes &= kMagnitudes | ((magnitudes + kMagnitudes) & kSigns);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const u32 selector = magnitudes >> (16 * half);
    const u32 lower = permuted(0xc080'0000, 0xc080'4000, selector);
    const u32 negative = permuted(kTop, kTop, codes >> (16 * half));
    const u32 upper = permuted(0x3f3f'3f00, 0x4040'4040, selector) | (negative << 1 & kTop);
    pairs[2 * half] = permuted(lower, upper, 0x5140);
    pairs[2 * half + 1] = permuted(lower, upper, 0x7362);
  }
}

/// Two of FP8 are one instruction.
template <Codes kCodes>
__device__ __forceinline__ float2 two_numbers(u32 word, int pair, float zero) {
  if constexpr (kCodes == Codes::E4m3 || kCodes == Codes::E5m2) {
    const auto codes = static_cast<__nv_fp8x2_storage_t>(word >> (16 * pair));
    const auto format = kCodes == Codes::E4m3 ? __NV_E4M3 : __NV_E5M2;
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, format)));
  } else {
    return {number_at<kCodes>(word, 2 * pair, zero), number_at<kCodes>(word, 2 * pair + 1, zero)};
  }
}

// ---- kernels ------------------------------------------------------------------------------------

/// Maps units of 16 decoded bytes to rows and cells; `grid_*` are those of one matrix.
struct UnitGrid {
  FastDivision row_units;
  FastDivision matrix_rows;
  FastDivision cell_rows;
  FastDivision cell_units;
  FastDivision matrix_units;
  i64 grid_rows;
  i64 grid_cols;
  /// Cells are of one row, and no row has a shorter one: scales lie as units do.
  bool is_linear;

  __device__ __forceinline__ float scale(const ScaleRule& rule, u32 unit) const {
    if (is_linear)
      return scale_of(rule, cell_units.quotient(unit), rule.globals != nullptr ? matrix_units.quotient(unit) : 0);
    const u32 row = row_units.quotient(unit);
    const u32 matrix = matrix_rows.quotient(row);
    const i64 grid_row = matrix * grid_rows + cell_rows.quotient(row - matrix * matrix_rows.divisor);
    return scale_of(rule, grid_row * grid_cols + cell_units.quotient(unit - row * row_units.divisor), matrix);
  }
};

/// The codes of a unit.
template <Codes kCodes, typename Value>
struct UnitCodes {
  static constexpr int kCount = 16 / sizeof(Value);
  static constexpr int kBytes = in_halves(kCodes) ? kCount / 2 : kCount;
  using Word = std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, u32, u16>>;
  /// The units that a thread has in flight. Where little is read for what is written, fewer are faster: what a block
  /// writes then lies closer together.
  static constexpr int kUnits = kBytes == 8 ? 4 : 2;
};

/// A product is rounded to this dtype before it is rounded to that of the decoded weight.
enum class Product {
  ToF32,
  /// It is not rounded: bf16 holds the scale, so one product of bf16 is rounded as the one of fp32 is, which is exact.
  Exact,
  ToF32ThenF16,
};

template <Product kProduct>
__device__ __forceinline__ float2 two_products(float2 numbers, float scale) {
  const float2 products{__fmul_rn(numbers.x, scale), __fmul_rn(numbers.y, scale)};
  if constexpr (kProduct == Product::ToF32ThenF16) return in_f16(products);
  return products;
}

template <Product kProduct>
__device__ __forceinline__ uint4 decoded_e2m1(u32 codes, float scale, float zero) {
  u32 pairs[4];
  e2m1_as_bf16(codes, __float_as_uint(zero) == 0, pairs);
  uint4 out;
  u32* const place = &out.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kProduct == Product::Exact) {
      const auto pair = *reinterpret_cast<const __nv_bfloat162*>(&pairs[i]);
      const __nv_bfloat162 product = __hmul2_rn(pair, __float2bfloat162_rn(scale));
      place[i] = __vmins2(*reinterpret_cast<const u32*>(&product), 0x7fc0'7fc0U);
    } else {
      const float2 numbers{__uint_as_float(pairs[i] << 16), __uint_as_float(pairs[i] & 0xffff'0000)};
      place[i] = two_bf16(two_products<kProduct>(numbers, scale));
    }
  }
  return out;
}

template <Codes kCodes, typename Value, Product kProduct>
__device__ __forceinline__ uint4 decoded_unit(typename UnitCodes<kCodes, Value>::Word codes, float scale, float zero) {
  constexpr int kCount = UnitCodes<kCodes, Value>::kCount;
  if constexpr (kCodes == Codes::E2m1 && kCount == 8) return decoded_e2m1<kProduct>(codes, scale, zero);
  constexpr int kWordPairs = in_halves(kCodes) ? 4 : 2;
  u32 words[2] = {};
  if constexpr (sizeof(codes) == 8) {
    words[0] = codes.x;
    words[1] = codes.y;
  } else {
    words[0] = codes;
  }
  uint4 out;
  u32* const place = &out.x;
#pragma unroll
  for (int pair = 0; pair < kCount / 2; ++pair) {
    const float2 number = two_numbers<kCodes>(words[pair / kWordPairs], pair % kWordPairs, zero);
    const float2 product = two_products<kProduct>(number, scale);
    if constexpr (kCount == 8) {
      place[pair] = two_bf16(product);
    } else {
      place[2 * pair] = __float_as_uint(with_one_nan(product.x));
      place[2 * pair + 1] = __float_as_uint(with_one_nan(product.y));
    }
  }
  return out;
}

template <Codes kCodes, typename Value, Product kProduct>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(const typename UnitCodes<kCodes, Value>::Word* data, ScaleRule rule, UnitGrid grid, float zero,
                  u32 units, uint4* out) {
  constexpr int kUnits = UnitCodes<kCodes, Value>::kUnits;
  const u32 first = blockIdx.x * (kThreads * kUnits) + threadIdx.x;
  typename UnitCodes<kCodes, Value>::Word codes[kUnits];
  float scales[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const u32 unit = first + i * kThreads;
    if (unit >= units) break;
    codes[i] = load_once(data + unit);
    scales[i] = grid.scale(rule, unit);
  }
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const u32 unit = first + i * kThreads;
    if (unit >= units) break;
    __stcs(out + unit, decoded_unit<kCodes, Value, kProduct>(codes[i], scales[i], zero));
  }
}

/// The extents of a weight, for single elements.
struct ElementGrid {
  i64 rows;
  i64 cols;
  i64 cell_rows;
  i64 cell_cols;
  i64 grid_rows;
  i64 grid_cols;
};

/// A thread for each element.
template <Codes kCodes, typename Value>
__global__ void __launch_bounds__(kThreads) decode_any_kernel(const u8* data, ScaleRule rule, ElementGrid grid,
                                                              float zero, bool rounds_to_f16, i64 count, Value* out) {
  const i64 at = static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= count) return;
  const i64 row = at / grid.cols, col = at % grid.cols, matrix = row / grid.rows;
  const i64 grid_row = matrix * grid.grid_rows + row % grid.rows / grid.cell_rows;
  const float scale = scale_of(rule, grid_row * grid.grid_cols + col / grid.cell_cols, matrix);
  const u32 code = in_halves(kCodes) ? data[at / 2] >> (4 * (at % 2)) & 15 : data[at];
  float product = __fmul_rn(number_of<kCodes>(code, zero), scale);
  if (rounds_to_f16) product = in_f16(product);
  if constexpr (sizeof(Value) == 2)
    out[at] = static_cast<u16>(two_bf16({product, 0}));
  else
    out[at] = with_one_nan(product);
}

// ---- launches -----------------------------------------------------------------------------------

bool aligned(const void* data, u64 bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

unsigned blocks_of(i64 count, i64 per_block) { return static_cast<unsigned>((count + per_block - 1) / per_block); }

FastDivision by(i64 divisor) { return FastDivision(static_cast<u32>(divisor)); }

/// Returns whether bf16 holds every scale.
bool in_bf16(const ScaleRule& rule) {
  if (rule.rounds_to_bf16) return true;
  const bool is_power = rule.dtype == Dtype::F8_E8M0 || rule.dtype == Dtype::U8;
  return rule.globals == nullptr && (is_power || rule.dtype == Dtype::BF16 || rule.dtype == Dtype::F8_E4M3);
}

std::string shape_of(const CodedWeight& weight) {
  return "[" + std::to_string(weight.matrices) + ", " + std::to_string(weight.rows) + ", " +
         std::to_string(weight.cols) + "]";
}

template <Codes kCodes, typename Value>
void launch(const CodedWeight& weight, i64 count, Value* out, GpuStream stream) {
  using Unit = UnitCodes<kCodes, Value>;
  const i64 cell_rows = std::min(weight.cell_rows, weight.rows), cell_cols = std::min(weight.cell_cols, weight.cols);
  const i64 grid_rows = (weight.rows - 1) / cell_rows + 1, grid_cols = (weight.cols - 1) / cell_cols + 1;
  const ScaleRule rule{static_cast<const u8*>(weight.scales), weight.globals, weight.scale_dtype, weight.global_divides,
                       weight.rounds_scale && sizeof(Value) == 2};
  const float zero = weight.positive_zero ? 0.0F : -0.0F;
  const i64 units = count / Unit::kCount;
  if (weight.cols % Unit::kCount == 0 && cell_cols % Unit::kCount == 0 && units < kMostUnits && aligned(out, 16) &&
      aligned(weight.data, sizeof(typename Unit::Word))) {
    const UnitGrid grid{by(weight.cols / Unit::kCount),
                        by(weight.rows),
                        by(cell_rows),
                        by(cell_cols / Unit::kCount),
                        by(std::min(weight.rows * weight.cols / Unit::kCount, kMostUnits - 1)),
                        grid_rows,
                        grid_cols,
                        cell_rows == 1 && weight.cols % cell_cols == 0};
    const auto start = [&](auto kernel) {
      kernel<<<blocks_of(units, kThreads * Unit::kUnits), kThreads, 0, stream>>>(
          static_cast<const typename Unit::Word*>(weight.data), rule, grid, zero, static_cast<u32>(units),
          reinterpret_cast<uint4*>(out));
    };
    constexpr bool kCanBeExact = kCodes == Codes::E2m1 && sizeof(Value) == 2;
    if (weight.rounds_to_f16)
      start(decode_kernel<kCodes, Value, Product::ToF32ThenF16>);
    else if (kCanBeExact && in_bf16(rule))
      start(decode_kernel < kCodes, Value, kCanBeExact ? Product::Exact : Product::ToF32 >);
    else
      start(decode_kernel<kCodes, Value, Product::ToF32>);
  } else {
    const ElementGrid grid{weight.rows, weight.cols, cell_rows, cell_cols, grid_rows, grid_cols};
    decode_any_kernel<kCodes, Value><<<blocks_of(count, kThreads), kThreads, 0, stream>>>(
        static_cast<const u8*>(weight.data), rule, grid, zero, weight.rounds_to_f16, count, out);
  }
  check_launch("decode_codes", [&] { return shape_of(weight); });
}

template <typename Value>
void launch_codes(const CodedWeight& weight, i64 count, Value* out, GpuStream stream) {
  switch (weight.codes) {
    case Codes::E4m3: return launch<Codes::E4m3>(weight, count, out, stream);
    case Codes::E5m2: return launch<Codes::E5m2>(weight, count, out, stream);
    case Codes::Int8: return launch<Codes::Int8>(weight, count, out, stream);
    case Codes::E2m1: return launch<Codes::E2m1>(weight, count, out, stream);
    default: return launch<Codes::Int4>(weight, count, out, stream);
  }
}

}  // namespace

void decode_codes(const CodedWeight& weight, Dtype to, void* out, GpuStream stream) {
  const i64 count = check_coded_weight("decode_codes", weight, to, out);
  if (count == 0) return;
  if (in_words(weight)) return decode_coded_words(weight, to, out, stream);
  if (to == Dtype::BF16) return launch_codes(weight, count, static_cast<u16*>(out), stream);
  launch_codes(weight, count, static_cast<float*>(out), stream);
}

}  // namespace glu_ckpt
