#pragma once
/// The choice among copies of a function that are compiled for vector registers of different length, made while the
/// program runs.

#include <span>

namespace glu_ckpt {

/// The vector registers that a copy is compiled for: 64 bytes, 32, or those that every processor of the target has.
enum class SimdLevel { Avx512, Avx2, Plain };

// Code marked so runs only where simd_levels() has the level.
#if defined(__x86_64__)
#define GLU_CKPT_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define GLU_CKPT_AVX2 __attribute__((target("avx2")))
#else
#define GLU_CKPT_AVX512
#define GLU_CKPT_AVX2
#endif

/// The levels that this processor has, the fastest first; the last is Plain.
inline std::span<const SimdLevel> simd_levels() {
  static constexpr SimdLevel kLevels[] = {SimdLevel::Avx512, SimdLevel::Avx2, SimdLevel::Plain};
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  static const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return std::span(kLevels).subspan(has_avx512 ? 0 : has_avx2 ? 1 : 2);
#else
  return std::span(kLevels).last(1);
#endif
}

/// The copy of a function for the fastest level.
template <typename Function>
Function* fastest(Function* avx512, Function* avx2, Function* plain) {
  const SimdLevel level = simd_levels().front();
  return level == SimdLevel::Avx512 ? avx512 : level == SimdLevel::Avx2 ? avx2 : plain;
}

}  // namespace glu_ckpt
