/// One block scans the splits, a chunk of them at a time, and stores every output's multiple of each prefix sum. With
/// few splits a launch is all latency, so barriers are what is saved here: one a chunk, and one for the flags.

#include <algorithm>
#include <string>

#include "kernels/common/cuda_check.hpp"
#include "kernels/grouped_gemm/splits_to_offsets.hpp"

namespace glu_ckpt {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr int kMaxThreads = offsets_block_threads(1024);
constexpr int kFlagBits = 4;
constexpr u32 kFlagMask = (1U << kFlagBits) - 1;
static_assert(kOffsetsPerLaunch * kFlagBits <= 32);

struct DeviceOutput {
  void* data;
  i64 stride;
  bool int32;
  bool leading_zero;
};

struct DeviceOutputs {
  DeviceOutput at[kOffsetsPerLaunch];
  int count;
};

__device__ i64 wrapping_add(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }
__device__ i64 wrapping_sub(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(b)); }
__device__ i64 wrapping_mul(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); }

/// Sum over this lane and those below it.
__device__ i64 warp_prefix(i64 value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const i64 below = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(step));
    if (lane >= step) value = wrapping_add(value, below);
  }
  return value;
}

struct BlockPrefix {
  i64 inclusive;
  i64 total;
};

/// Returns the sum over the threads up to this one of the whole block. `warp_totals` must not be the array of the call
/// before: then a warp that has run ahead into this call overwrites nothing that another still reads, and one barrier
/// is enough.
__device__ BlockPrefix block_prefix(i64 value, i64 (&warp_totals)[kWarp]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const i64 within = warp_prefix(value);
  if (warps == 1) return {within, __shfl_sync(kAllLanes, within, kWarp - 1)};
  if (lane == kWarp - 1) warp_totals[warp] = within;
  __syncthreads();
  // Every warp scans the totals for itself; sharing one scan would cost another barrier.
  const i64 totals = warp_prefix(lane < warps ? warp_totals[lane] : 0);
  const i64 before = __shfl_sync(kAllLanes, totals, warp > 0 ? warp - 1 : 0);
  return {warp > 0 ? wrapping_add(before, within) : within, __shfl_sync(kAllLanes, totals, kWarp - 1)};
}

/// Says whether `split` took the prefix sum beyond int64. The first time in a call the sum before it is exact, so flags
/// are set if and only if some prefix is not.
__device__ bool sum_overflowed(i64 prefix, i64 split) {
  const i64 before = wrapping_sub(prefix, split);
  return ((before ^ prefix) & (split ^ prefix)) < 0;
}

__device__ void store_leading_zero(const DeviceOutput& out) {
  if (!out.leading_zero) return;
  if (out.int32) {
    *static_cast<std::int32_t*>(out.data) = 0;
  } else {
    *static_cast<i64*>(out.data) = 0;
  }
}

/// Stores the offset behind group `group`; returns its OffsetFlag bits.
__device__ u32 store_offset(const DeviceOutput& out, i64 group, i64 prefix) {
  const i64 offset = wrapping_mul(prefix, out.stride);
  u32 flags = __mul64hi(prefix, out.stride) == (offset >> 63) ? 0U : kOffsetBeyondInt64;
  const i64 index = group + (out.leading_zero ? 1 : 0);
  if (out.int32) {
    const auto low = static_cast<std::int32_t>(offset);
    static_cast<std::int32_t*>(out.data)[index] = low;
    if (low != offset || flags != 0) flags |= kOffsetBeyondInt32;
  } else {
    static_cast<i64*>(out.data)[index] = offset;
  }
  return flags;
}

/// One word for each of `count` outputs from the 4 bits each that all threads found.
__device__ void store_flags(u32 found, int count, u32* flags) {
  __shared__ u32 in_block;
  const int output = static_cast<int>(threadIdx.x);
  if (__syncthreads_or(found != 0) == 0) {
    if (output < count) flags[output] = 0;
    return;
  }
  if (threadIdx.x == 0) in_block = 0;
  __syncthreads();
  if (found != 0) atomicOr(&in_block, found);
  __syncthreads();
  if (output < count) flags[output] = (in_block >> (kFlagBits * output)) & kFlagMask;
}

template <typename Split>
__global__ void __launch_bounds__(kMaxThreads)
    splits_to_offsets_kernel(const Split* splits, i64 num_splits, const __grid_constant__ DeviceOutputs outputs,
                             u32* flags) {
  __shared__ i64 warp_totals[2][kWarp];
  if (static_cast<int>(threadIdx.x) < outputs.count) store_leading_zero(outputs.at[threadIdx.x]);
  i64 carried = 0;
  u32 found = 0;
  int turn = 0;
  for (i64 chunk = 0; chunk < num_splits; chunk += blockDim.x, turn ^= 1) {
    const i64 group = chunk + threadIdx.x;
    const i64 split = group < num_splits ? static_cast<i64>(splits[group]) : 0;
    const BlockPrefix sum = block_prefix(split, warp_totals[turn]);
    if (group < num_splits) {
      const i64 prefix = wrapping_add(carried, sum.inclusive);
      const u32 of_sum = sum_overflowed(prefix, split) ? kOffsetSumBeyondInt64 : 0U;
      for (int j = 0; j < outputs.count; ++j)
        found |= (of_sum | store_offset(outputs.at[j], group, prefix)) << (kFlagBits * j);
    }
    carried = wrapping_add(carried, sum.total);
  }
  if (flags != nullptr) store_flags(found, outputs.count, flags);
}

DeviceOutputs for_device(std::span<const OffsetOutput> outputs) {
  DeviceOutputs out{};
  for (const OffsetOutput& output : outputs)
    out.at[out.count++] = {output.data, output.spec.stride, output.spec.dtype == Dtype::I32, output.spec.leading_zero};
  return out;
}

void launch(const SplitSizes& splits, const DeviceOutputs& outputs, u32* flags, GpuStream stream) {
  const int threads = offsets_block_threads(splits.count);
  if (splits.dtype == Dtype::I32) {
    splits_to_offsets_kernel<<<1, threads, 0, stream>>>(static_cast<const std::int32_t*>(splits.data), splits.count,
                                                        outputs, flags);
  } else {
    splits_to_offsets_kernel<<<1, threads, 0, stream>>>(static_cast<const i64*>(splits.data), splits.count, outputs,
                                                        flags);
  }
  check_launch("splits_to_offsets", [&] {
    return std::to_string(splits.count) + " splits for " + std::to_string(outputs.count) + " outputs";
  });
}

}  // namespace

void splits_to_offsets_multi(const SplitSizes& splits, std::span<const OffsetOutput> outputs, u32* flags,
                             GpuStream stream) {
  if (outputs.empty()) return;
  check_offset_arguments(splits, outputs, flags);
  for (std::size_t first = 0; first < outputs.size(); first += kOffsetsPerLaunch) {
    const std::size_t count = std::min<std::size_t>(kOffsetsPerLaunch, outputs.size() - first);
    launch(splits, for_device(outputs.subspan(first, count)), flags == nullptr ? nullptr : flags + first, stream);
  }
}

}  // namespace glu_ckpt
