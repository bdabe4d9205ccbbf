#pragma once
/// Division by a number known at launch as a multiplication, which costs a GPU a tenth of a division (Granlund and
/// Montgomery, "Division by Invariant Integers using Multiplication", 1994, figure 4.1 for 32 bits).

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define GLU_CKPT_DEVICE __host__ __device__ __forceinline__
#else
#define GLU_CKPT_DEVICE inline
#endif

namespace glu_ckpt {

/// Exact for every dividend below 2^32; divisor in [1, 2^31].
struct FastDivision {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 1;
  std::uint32_t shift = 0;

  FastDivision() = default;
  explicit FastDivision(std::uint32_t by)
      : divisor(by),
        multiplier(static_cast<std::uint32_t>(
            ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << std::bit_width(by - 1)) - by)) / by + 1)),
        shift(static_cast<std::uint32_t>(std::bit_width(by - 1))) {}

  GLU_CKPT_DEVICE std::uint32_t quotient(std::uint32_t dividend) const {
#ifdef __CUDA_ARCH__
    const std::uint64_t high = __umulhi(dividend, multiplier);
#else
    const std::uint64_t high = (static_cast<std::uint64_t>(dividend) * multiplier) >> 32;
#endif
    return static_cast<std::uint32_t>((high + dividend) >> shift);
  }
};

}  // namespace glu_ckpt
