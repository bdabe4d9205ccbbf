/// One transform_reduce whose items are long stretches of both buffers: a thread keeps eight loads of 16 bytes in
/// flight and its partial result, of 48 bytes, is merged once for hundreds of elements. Elements are compared as lanes
/// of 64-bit words, whatever the dtype; only where bits differ do they become numbers. Sums, minima and maxima come out
/// the same in whatever order.

// All sizes are 64-bit: one instance of Thrust's kernels, not two.
#define THRUST_FORCE_64_BIT_OFFSET_TYPE

#include <cuda_fp16.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>
#include <thrust/transform_reduce.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/common/cuda_check.hpp"
#include "kernels/common/load_once.cuh"
#include "kernels/copy/diff_stats.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kVectorBytes = 16;
/// Vectors of either buffer that a thread loads before it compares them.
constexpr int kLoads = 4;
/// Neighbouring items take neighbouring vectors, this many side by side.
constexpr i64 kGroup = 256;
/// Enough items to fill every GPU several times over; larger buffers make longer items, not more of them.
constexpr i64 kMostItems = i64{1} << 20;

struct Partial {
  i64 differing = 0;
  i64 first = std::numeric_limits<i64>::max();
  double max_abs = 0;
  double max_rel = 0;
  i64 nan_in_one = 0;
  i64 nan_in_both = 0;
};

/// The elements of a 64-bit word as lanes. A result has a lane's uppermost bit set where the answer is yes.
struct Lanes {
  /// The uppermost bit of every lane.
  u64 top = 0;
  /// All other bits of floats, and what carries into the uppermost bit when it is added to a NaN's; 0 for other dtypes.
  u64 magnitude = 0;
  u64 nan_carry = 0;
  /// Binary logarithm of the bits of a lane.
  int log2_bits = 0;

  __device__ u64 differing(u64 a, u64 b) const {
    const u64 bits = a ^ b;
    return (((bits & ~top) + ~top) | bits) & top;
  }
  __device__ u64 nans(u64 word) const { return ((word & magnitude) + nan_carry) & top; }
};

/// `infinity` is the bits of the dtype's infinity; 0 for a dtype that is bits alone.
Lanes make_lanes(int bits, u64 infinity) {
  // 1 in every lane.
  const u64 ones = ~u64{0} / (~u64{0} >> (64 - bits));
  const u64 top = u64{1} << (bits - 1);
  Lanes lanes{.top = ones * top, .log2_bits = std::countr_zero(static_cast<unsigned>(bits))};
  if (infinity != 0) {
    lanes.magnitude = ~lanes.top;
    lanes.nan_carry = ones * (top - infinity - 1);
  }
  return lanes;
}

Lanes lanes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::F16: return make_lanes(16, 0x7c00);
    case Dtype::BF16: return make_lanes(16, 0x7f80);
    case Dtype::F32: return make_lanes(32, 0x7f800000);
    case Dtype::F64: return make_lanes(64, 0x7ff0000000000000);
    default: return make_lanes(dtype_bits(dtype), 0);
  }
}

struct Half {
  static constexpr int kBits = 16;
  __device__ static float value(u64 word) { return __half2float(__ushort_as_half(static_cast<unsigned short>(word))); }
};
struct BFloat {
  static constexpr int kBits = 16;
  __device__ static float value(u64 word) { return __uint_as_float(static_cast<u32>(word) << 16); }
};
struct Float {
  static constexpr int kBits = 32;
  __device__ static float value(u64 word) { return __uint_as_float(static_cast<u32>(word)); }
};

struct Maxima {
  double abs;
  double rel;
};

/// In double: the difference of two floats can be beyond float's range. One copy, since few elements come here.
__device__ __noinline__ Maxima with_difference(Maxima found, double a, double b) {
  const double difference = fabs(a - b);
  // A NaN compares as false, and so does infinity minus itself.
  if (!(difference > 0)) return found;
  const bool unbounded = a == 0 || isinf(difference);
  const double relative = unbounded ? std::numeric_limits<double>::infinity() : difference / fabs(a);
  return {fmax(found.abs, difference), fmax(found.rel, relative)};
}

/// The findings of one item, and bounds below the maxima that float's rounding cannot cross: only a difference that
/// reaches one of them can raise a maximum.
struct Found {
  u32 differing = 0;
  u32 nan_in_one = 0;
  u32 nan_in_both = 0;
  i64 first = std::numeric_limits<i64>::max();
  Maxima maxima = {0, 0};
  float abs_bound = 0;
  float rel_bound = 0;

  __device__ Partial partial() const { return {differing, first, maxima.abs, maxima.rel, nan_in_one, nan_in_both}; }

  __device__ void add_difference(double a, double b) {
    maxima = with_difference(maxima, a, b);
    // Three roundings to float, of 2^-24 each, lie between a bound and what is compared with it.
    constexpr double kMargin = 1 - 0x1p-20;
    abs_bound = __double2float_rd(maxima.abs * kMargin);
    rel_bound = __double2float_rd(maxima.rel * kMargin);
  }

  template <typename Element>
  __device__ void add_floats(u64 a, u64 b) {
#pragma unroll
    for (int shift = 0; shift < 64; shift += Element::kBits) {
      const float of_a = Element::value(a >> shift);
      const float of_b = Element::value(b >> shift);
      const float difference = fabsf(of_a - of_b);
      if (difference > 0 && (difference > abs_bound || difference >= rel_bound * fabsf(of_a)))
        add_difference(static_cast<double>(of_a), static_cast<double>(of_b));
    }
  }

  /// Two words that are not equal; the first element has index `first_element`.
  __device__ void add_words(const Lanes& lanes, Dtype dtype, u64 a, u64 b, i64 first_element) {
    if (const u64 unequal = lanes.differing(a, b); unequal != 0) {
      // An item's words come in the order of their addresses.
      if (differing == 0) first = first_element + ((__ffsll(static_cast<long long>(unequal)) - 1) >> lanes.log2_bits);
      differing += __popcll(unequal);
    }
    const u64 nans_a = lanes.nans(a), nans_b = lanes.nans(b);
    nan_in_one += __popcll(nans_a ^ nans_b);
    nan_in_both += __popcll(nans_a & nans_b);
    switch (dtype) {
      case Dtype::F16: return add_floats<Half>(a, b);
      case Dtype::BF16: return add_floats<BFloat>(a, b);
      case Dtype::F32: return add_floats<Float>(a, b);
      case Dtype::F64:
        return add_difference(__longlong_as_double(static_cast<long long>(a)),
                              __longlong_as_double(static_cast<long long>(b)));
      default: return;
    }
  }
};

__device__ u64 low_word(const uint4& vector) { return static_cast<u64>(vector.y) << 32 | vector.x; }
__device__ u64 high_word(const uint4& vector) { return static_cast<u64>(vector.w) << 32 | vector.z; }

/// Up to 16 bytes at any address, and zeros for the rest: in both buffers, so they are equal.
__device__ __noinline__ uint4 gather_vector(const std::byte* from, i64 bytes) {
  u64 words[2] = {};
#pragma unroll
  for (int i = 0; i < kVectorBytes; ++i)
    if (i < bytes) words[i / 8] |= static_cast<u64>(from[i]) << (i % 8 * 8);
  return {static_cast<u32>(words[0]), static_cast<u32>(words[0] >> 32), static_cast<u32>(words[1]),
          static_cast<u32>(words[1] >> 32)};
}

/// Both buffers, as the device sees them.
struct CompareItem {
  const std::byte* a;
  const std::byte* b;
  i64 bytes;
  Dtype dtype;
  Lanes lanes;
  /// Times that an item loads kLoads vectors of both.
  i64 steps;
  /// Both pointers are multiples of 16.
  bool aligned;

  i64 items() const {
    const i64 vectors = (bytes + kVectorBytes - 1) / kVectorBytes;
    const i64 group_vectors = steps * kLoads * kGroup;
    return (vectors + group_vectors - 1) / group_vectors * kGroup;
  }

  /// Not inlined: Thrust calls it from several places.
  __device__ __noinline__ Partial operator()(i64 item) const {
    const i64 first = item / kGroup * (steps * kLoads * kGroup) + item % kGroup;
    Found found;
    for (i64 step = 0; step < steps; ++step) {
      const i64 vector = first + step * (kLoads * kGroup);
      if (vector * kVectorBytes >= bytes) break;
      uint4 of_a[kLoads], of_b[kLoads];
      load(vector, of_a, of_b);
      compare(vector, of_a, of_b, found);
    }
    return found.partial();
  }

  __device__ void load(i64 vector, uint4 (&of_a)[kLoads], uint4 (&of_b)[kLoads]) const {
    const i64 at = vector * kVectorBytes;
    constexpr i64 kStep = kGroup * kVectorBytes;
    const bool whole = aligned && at + (kLoads - 1) * kStep + kVectorBytes <= bytes;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      of_a[i] = whole ? load_once(reinterpret_cast<const uint4*>(a + at + i * kStep))
                      : gather_vector(a + at + i * kStep, bytes - at - i * kStep);
      of_b[i] = whole ? load_once(reinterpret_cast<const uint4*>(b + at + i * kStep))
                      : gather_vector(b + at + i * kStep, bytes - at - i * kStep);
    }
  }

  __device__ void compare(i64 vector, const uint4 (&of_a)[kLoads], const uint4 (&of_b)[kLoads], Found& found) const {
    u32 differing = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      differing |=
          (of_a[i].x ^ of_b[i].x) | (of_a[i].y ^ of_b[i].y) | (of_a[i].z ^ of_b[i].z) | (of_a[i].w ^ of_b[i].w);
    if (differing == 0) {
      int nans = 0;
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        nans += __popcll(lanes.nans(low_word(of_a[i]))) + __popcll(lanes.nans(high_word(of_a[i])));
      found.nan_in_both += nans;
      return;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const i64 element = ((vector + i * kGroup) * kVectorBytes * 8) >> lanes.log2_bits;
      found.add_words(lanes, dtype, low_word(of_a[i]), low_word(of_b[i]), element);
      found.add_words(lanes, dtype, high_word(of_a[i]), high_word(of_b[i]), element + (64 >> lanes.log2_bits));
    }
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

Partial reduce(const CompareItem& compare, GpuStream stream) {
  StreamAllocator allocator{stream};
  const thrust::counting_iterator<i64> first(0);
  return thrust::transform_reduce(thrust::cuda::par(allocator).on(stream), first, first + compare.items(), compare,
                                  Partial{}, Merge{});
}

}  // namespace

DiffStats diff_stats(const void* a, const void* b, i64 count, Dtype dtype, GpuStream stream) {
  check_diff_arguments(a, b, count, dtype);
  if (count == 0) return {};
  const auto address_bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b);
  const i64 bytes = count * (dtype_bits(dtype) / 8);
  const CompareItem compare{.a = static_cast<const std::byte*>(a),
                            .b = static_cast<const std::byte*>(b),
                            .bytes = bytes,
                            .dtype = dtype,
                            .lanes = lanes_of(dtype),
                            .steps = std::max<i64>(1, bytes / (kVectorBytes * kLoads * kMostItems)),
                            .aligned = address_bits % kVectorBytes == 0};
  try {
    const Partial found = reduce(compare, stream);
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
