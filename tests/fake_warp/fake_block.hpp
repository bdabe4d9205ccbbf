#pragma once
/// Device code on a CPU, one block at a time: what nvcc knows by itself, for a .cuh that is compiled as C++. Include it
/// before the .cuh. Threads of a block are fibers. A warp runs alone until it comes to a barrier of the block, so that
/// a barrier that is missing shows: one warp is then far ahead of another.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct FakeIndex {
  unsigned x = 0;
};
inline FakeIndex threadIdx, blockIdx, blockDim;

struct __attribute__((may_alias, aligned(8))) float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
struct __attribute__((may_alias, aligned(8))) uint2 {
  unsigned x, y;
};
struct __attribute__((may_alias, aligned(16))) uint4 {
  unsigned x, y, z, w;
};
struct __attribute__((may_alias, aligned(16))) float4 {
  float x, y, z, w;
};

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }

namespace fake_warp {

/// Runs `thread` once for each of `threads` threads, a multiple of 32, of block number `block`.
void run_block(unsigned block, unsigned threads, const std::function<void()>& thread);

/// Until the other threads of the block, or of the warp, are here.
void wait_for_block();
void wait_for_warp();

unsigned lane();

/// Every lane's `mine`, for all lanes of the warp, until the lane's next call but one.
template <typename T>
const std::array<T, 32>& exchange(const T& mine) {
  // Warps run one at a time. A lane fills one array while others still read the other.
  static std::array<std::array<T, 32>, 2> all;
  static std::array<unsigned, 32> turns;
  std::array<T, 32>& now = all[turns[lane()]++ % 2];
  now[lane()] = mine;
  wait_for_warp();
  return now;
}

}  // namespace fake_warp

inline void __syncthreads() { fake_warp::wait_for_block(); }

template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned step) {
  const auto& all = fake_warp::exchange(value);
  return fake_warp::lane() >= step ? all[fake_warp::lane() - step] : value;
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return fake_warp::exchange(value)[fake_warp::lane() ^ mask];
}

inline void atomicMin(int* at, int value) { *at = value < *at ? value : *at; }
