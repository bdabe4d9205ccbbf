/// One transform_reduce: each item is 16 bytes of both buffers, so that loads are wide and a partial result, of 48
/// bytes, is merged once for up to 16 elements. Sums, minima and maxima come out the same in whatever order.

#include <cuda_fp16.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>
#include <thrust/transform_reduce.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/common/cuda_check.hpp"
#include "kernels/copy/diff_stats.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kItemBytes = 16;

struct Partial {
  i64 differing = 0;
  i64 first = std::numeric_limits<i64>::max();
  double max_abs = 0;
  double max_rel = 0;
  i64 nan_in_one = 0;
  i64 nan_in_both = 0;
};

/// How bits become a value. In double: the difference of two floats can be beyond float's range, and since it is
/// computed only where bits differ, its cost does not show.
template <typename BitsType>
struct RawElement {
  using Bits = BitsType;
  static constexpr bool kIsFloat = false;
};
struct Half {
  using Bits = std::uint16_t;
  static constexpr bool kIsFloat = true;
  static constexpr Bits kMagnitude = 0x7fff, kInfinity = 0x7c00;
  __device__ static double value(Bits bits) { return static_cast<double>(__half2float(__ushort_as_half(bits))); }
};
struct BFloat {
  using Bits = std::uint16_t;
  static constexpr bool kIsFloat = true;
  static constexpr Bits kMagnitude = 0x7fff, kInfinity = 0x7f80;
  __device__ static double value(Bits bits) {
    return static_cast<double>(__uint_as_float(static_cast<std::uint32_t>(bits) << 16));
  }
};
struct Float {
  using Bits = std::uint32_t;
  static constexpr bool kIsFloat = true;
  static constexpr Bits kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  __device__ static double value(Bits bits) { return static_cast<double>(__uint_as_float(bits)); }
};
struct Double {
  using Bits = unsigned long long;
  static constexpr bool kIsFloat = true;
  static constexpr Bits kMagnitude = 0x7fffffffffffffff, kInfinity = 0x7ff0000000000000;
  __device__ static double value(Bits bits) { return __longlong_as_double(static_cast<long long>(bits)); }
};

__device__ void add_difference(Partial& partial, double a, double b) {
  const double difference = fabs(a - b);
  if (difference == 0) return;
  const bool unbounded = a == 0 || isinf(difference);
  const double relative = unbounded ? std::numeric_limits<double>::infinity() : difference / fabs(a);
  partial.max_abs = fmax(partial.max_abs, difference);
  partial.max_rel = fmax(partial.max_rel, relative);
}

template <typename Element>
__device__ void add_element(Partial& partial, typename Element::Bits a, typename Element::Bits b, i64 index) {
  if (a != b) {
    ++partial.differing;
    partial.first = index < partial.first ? index : partial.first;
  }
  if constexpr (Element::kIsFloat) {
    const bool nan_a = (a & Element::kMagnitude) > Element::kInfinity;
    const bool nan_b = (b & Element::kMagnitude) > Element::kInfinity;
    if (nan_a || nan_b) {
      ++(nan_a && nan_b ? partial.nan_in_both : partial.nan_in_one);
    } else if (a != b) {
      add_difference(partial, Element::value(a), Element::value(b));
    }
  }
}

/// Both buffers, as the device sees them. One functor for all dtypes: the switch is taken once an item, and all
/// threads take the same way.
struct CompareItem {
  const void* a;
  const void* b;
  i64 count;
  Dtype dtype;
  /// Both pointers are multiples of 16.
  bool aligned;

  __device__ Partial operator()(i64 item) const {
    switch (dtype) {
      case Dtype::F16: return compare<Half>(item);
      case Dtype::BF16: return compare<BFloat>(item);
      case Dtype::F32: return compare<Float>(item);
      case Dtype::F64: return compare<Double>(item);
      case Dtype::I16:
      case Dtype::U16: return compare<RawElement<std::uint16_t>>(item);
      case Dtype::I32:
      case Dtype::U32: return compare<RawElement<std::uint32_t>>(item);
      case Dtype::C64:
      case Dtype::I64:
      case Dtype::U64: return compare<RawElement<unsigned long long>>(item);
      default: return compare<RawElement<std::uint8_t>>(item);
    }
  }

  template <typename Element>
  __device__ Partial compare(i64 item) const {
    using Bits = typename Element::Bits;
    constexpr int kPerItem = static_cast<int>(kItemBytes / sizeof(Bits));
    alignas(kItemBytes) Bits of_a[kPerItem];
    alignas(kItemBytes) Bits of_b[kPerItem];
    const i64 begin = item * kPerItem;
    load(static_cast<const Bits*>(a), begin, of_a);
    load(static_cast<const Bits*>(b), begin, of_b);
    Partial partial;
#pragma unroll
    for (int i = 0; i < kPerItem; ++i) add_element<Element>(partial, of_a[i], of_b[i], begin + i);
    return partial;
  }

  /// Zeros stand in for elements past the end: in both buffers, so they are equal.
  template <typename Bits, int kPerItem>
  __device__ void load(const Bits* from, i64 begin, Bits (&into)[kPerItem]) const {
    if (aligned && begin + kPerItem <= count) {
      const uint4 wide = *reinterpret_cast<const uint4*>(from + begin);
      std::memcpy(into, &wide, sizeof wide);
      return;
    }
#pragma unroll
    for (int i = 0; i < kPerItem; ++i) into[i] = begin + i < count ? from[begin + i] : Bits{0};
  }
};

struct Merge {
  __host__ __device__ Partial operator()(const Partial& x, const Partial& y) const {
    Partial sum;
    sum.differing = x.differing + y.differing;
    sum.first = x.first < y.first ? x.first : y.first;
    sum.max_abs = x.max_abs > y.max_abs ? x.max_abs : y.max_abs;
    sum.max_rel = x.max_rel > y.max_rel ? x.max_rel : y.max_rel;
    sum.nan_in_one = x.nan_in_one + y.nan_in_one;
    sum.nan_in_both = x.nan_in_both + y.nan_in_both;
    return sum;
  }
};

/// Thrust's temporary memory, in the order of the stream: cudaFree would wait for all other streams of the device.
struct StreamAllocator {
  using value_type = char;
  GpuStream stream;

  char* allocate(std::size_t bytes) {
    void* data = nullptr;
    if (const cudaError_t status = cudaMallocAsync(&data, bytes, stream); status != cudaSuccess)
      device_memory_fail(status, static_cast<i64>(bytes));
    return static_cast<char*>(data);
  }
  // A failure to free cannot be acted upon; the next checked call reports it.
  void deallocate(char* data, std::size_t) { (void)cudaFreeAsync(data, stream); }
};

Partial reduce(const CompareItem& compare, i64 items, GpuStream stream) {
  StreamAllocator allocator{stream};
  const thrust::counting_iterator<i64> first(0);
  return thrust::transform_reduce(thrust::cuda::par(allocator).on(stream), first, first + items, compare, Partial{},
                                  Merge{});
}

}  // namespace

DiffStats diff_stats(const void* a, const void* b, i64 count, Dtype dtype, GpuStream stream) {
  check_diff_arguments(a, b, count, dtype);
  if (count == 0) return {};
  const auto address_bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b);
  const i64 per_item = kItemBytes * 8 / dtype_bits(dtype);
  const i64 items = count / per_item + (count % per_item != 0 ? 1 : 0);
  try {
    const Partial found = reduce({a, b, count, dtype, address_bits % kItemBytes == 0}, items, stream);
    return {.elements = count,
            .differing = found.differing,
            .first = found.differing > 0 ? found.first : -1,
            .max_abs = found.max_abs,
            .max_rel = found.max_rel,
            .nan_in_one = found.nan_in_one,
            .nan_in_both = found.nan_in_both};
  } catch (const thrust::system_error& error) {
    // Without this the next check of a launch would report the error as its own.
    (void)cudaGetLastError();
    cuda_launch_fail(static_cast<cudaError_t>(error.code().value()), "diff_stats", diff_shape(count, dtype));
  }
}

}  // namespace glu_ckpt
