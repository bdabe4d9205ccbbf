#pragma once
/// These functions round decoded numbers to the dtype that is stored, with the NaN that the CPU gives, whatever it came
/// from.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/mxfp8_bits.hpp"

namespace glu_ckpt {

__device__ __forceinline__ float with_one_nan(float value) { return isnan(value) ? __uint_as_float(kF32Nan) : value; }

/// Rounds to fp16 and back, to nearest even; what is too large becomes infinite.
__device__ __forceinline__ float in_f16(float value) { return __half2float(__float2half_rn(value)); }
__device__ __forceinline__ float2 in_f16(float2 values) { return __half22float2(__float22half2_rn(values)); }

/// Rounds both to bf16. A NaN is 0x7fff at first, the largest of all as a signed number, and becomes 0x7fc0.
__device__ __forceinline__ std::uint32_t two_bf16(float2 values) {
  const __nv_bfloat162 pair = __float22bfloat162_rn(values);
  return __vmins2(*reinterpret_cast<const std::uint32_t*>(&pair), 0x7fc0'7fc0U);
}

}  // namespace glu_ckpt
