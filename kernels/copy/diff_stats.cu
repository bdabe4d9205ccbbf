/// Threads compare long stretches of both buffers, each with eight loads of 16 bytes in flight; Thrust merges what the
/// blocks found. Elements are compared as lanes of 64-bit words, whatever the dtype. Their differences are looked at as
/// floats, and only those that may be the largest so far, of those that any block has seen, are made exact, in double.
/// Sums, minima and maxima come out the same in whatever order.

// All sizes are 64-bit: one instance of Thrust's kernels, not two.
#define THRUST_FORCE_64_BIT_OFFSET_TYPE

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_fp16.h>
#include <thrust/reduce.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/system_error.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <limits>
#include <memory>
#include <type_traits>

#include "kernels/common/cuda_check.hpp"
#include "kernels/common/load_once.cuh"
#include "kernels/copy/diff_stats.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kVectorBytes = 16;
/// Vectors of either buffer that a thread loads before it compares them.
constexpr int kLoads = 4;
constexpr int kThreads = 256;
/// The blocks that a multiprocessor runs together: more would leave a thread too few registers.
constexpr int kBlocks = 3;

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

/// The dtypes whose elements are numbers: `Number` holds every difference of two but for its rounding.
struct Half {
  using Number = float;
  static constexpr int kBits = 16;
  __device__ static float value(u64 word) { return __half2float(__ushort_as_half(static_cast<unsigned short>(word))); }
};
struct BFloat {
  using Number = float;
  static constexpr int kBits = 16;
  __device__ static float value(u64 word) { return __uint_as_float(static_cast<u32>(word) << 16); }
};
struct Float {
  using Number = float;
  static constexpr int kBits = 32;
  __device__ static float value(u64 word) { return __uint_as_float(static_cast<u32>(word)); }
};
struct Double {
  using Number = double;
  static constexpr int kBits = 64;
  __device__ static double value(u64 word) { return __longlong_as_double(static_cast<long long>(word)); }
};
/// A dtype whose elements are bits alone.
struct Bits {
  using Number = float;
};

/// Calls `use` with the values of both sides for each element of two words.
template <typename Element, typename Use>
__device__ __forceinline__ void for_numbers(u64 a, u64 b, const Use& use) {
#pragma unroll
  for (int shift = 0; shift < 64; shift += Element::kBits) use(Element::value(a >> shift), Element::value(b >> shift));
}

struct Maxima {
  double abs = 0;
  double rel = 0;

  /// Takes the difference of one element, in double: that of two floats can be beyond float's range.
  __device__ void add(double a, double b) {
    const double difference = fabs(a - b);
    // A NaN compares as false, and so does infinity minus itself.
    if (!(difference > 0)) return;
    const bool unbounded = a == 0 || isinf(difference);
    abs = fmax(abs, difference);
    rel = fmax(rel, unbounded ? std::numeric_limits<double>::infinity() : difference / fabs(a));
  }
};

__device__ inline float rounded_down(double value, float) { return __double2float_rd(value); }
__device__ inline double rounded_down(double value, double) { return value; }

/// The largest bounds of all blocks so far, as the bits of floats.
struct alignas(8) SharedBounds {
  u32 abs = 0;
  u32 rel = 0;
};

/// Bounds below the maxima, which the rounding of Number cannot cross: only an element that reaches one of them can
/// raise a maximum. They may come from elements of other threads.
template <typename Number>
struct Bounds {
  Number abs = 0;
  Number rel = 0;

  /// Some roundings, of 2^-24 each, lie between a bound and what is compared with it.
  static constexpr double kMargin = 1 - 0x1p-20;

  __device__ void raise(double to_abs, double to_rel) {
    abs = fmax(abs, rounded_down(to_abs * kMargin, Number{}));
    rel = fmax(rel, rounded_down(to_rel * kMargin, Number{}));
  }

  /// Takes the largest bounds of the threads that run together.
  __device__ void share() {
    // Positive floats are in the order of their bits.
    if constexpr (kAreShared) {
      const auto together = cooperative_groups::coalesced_threads();
      const auto most = cooperative_groups::greater<u32>();
      abs = __uint_as_float(cooperative_groups::reduce(together, __float_as_uint(abs), most));
      rel = __uint_as_float(cooperative_groups::reduce(together, __float_as_uint(rel), most));
    }
  }

  /// These give bounds to all blocks, and take those of all. The threads that run together have shared theirs before.
  __device__ void give(SharedBounds* shared) const {
    if constexpr (kAreShared)
      if (cooperative_groups::coalesced_threads().thread_rank() == 0) {
        atomicMax(&shared->abs, __float_as_uint(abs));
        atomicMax(&shared->rel, __float_as_uint(rel));
      }
  }
  __device__ void take(const SharedBounds* shared) {
    if constexpr (kAreShared) {
      const uint2 others = __ldcv(reinterpret_cast<const uint2*>(shared));
      abs = fmax(abs, __uint_as_float(others.x));
      rel = fmax(rel, __uint_as_float(others.y));
    }
  }

 private:
  static constexpr bool kAreShared = sizeof(Number) == 4;
};

__device__ inline float fma_down(float x, float y, float z) { return __fmaf_rd(x, y, z); }
__device__ inline double fma_down(double x, double y, double z) { return __fma_rd(x, y, z); }

/// The smallest difference that can raise a maximum, by the magnitude of a side's element.
template <typename Number>
class Limit {
 public:
  /// A maximum that is infinite cannot be raised: its part is NaN, which the smaller of two numbers passes over, and no
  /// difference reaches.
  __device__ explicit Limit(const Bounds<Number>& bounds)
      : abs_(isinf(bounds.abs) ? kNever : fmax(bounds.abs, kLeast)),
        factor_(isinf(bounds.rel) ? 0 : bounds.rel),
        offset_(isinf(bounds.rel) ? kNever : kLeast) {}

  /// Is false for a NaN. The product plus kLeast, rounded down, is the next number above the product, or the product.
  __device__ bool is_reached(Number a, Number difference) const {
    return difference >= fmin(abs_, fma_down(factor_, fabs(a), offset_));
  }

 private:
  /// Equal elements differ by less.
  static constexpr Number kLeast = std::numeric_limits<Number>::denorm_min();
  static constexpr Number kNever = std::numeric_limits<Number>::quiet_NaN();
  Number abs_, factor_, offset_;
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
struct Buffers {
  const std::byte* a;
  const std::byte* b;
  i64 bytes;
  Lanes lanes;
  /// Both pointers are multiples of 16.
  bool aligned;
  /// One for all blocks, zeros at first.
  SharedBounds* bounds = nullptr;

  __host__ __device__ i64 vectors() const { return (bytes + kVectorBytes - 1) / kVectorBytes; }

  /// Returns a vector of either buffer, whatever its alignment, with zeros behind the end.
  __device__ uint4 vector_of(const std::byte* side, i64 vector) const {
    const i64 at = vector * kVectorBytes;
    return aligned && at + kVectorBytes <= bytes ? *reinterpret_cast<const uint4*>(side + at)
                                                 : gather_vector(side + at, bytes - at);
  }

  /// Calls `use` with each pair of words of a step and the number of the word. The step is read again: few steps come
  /// here, and its vectors need not stay in registers for them.
  template <typename Use>
  __device__ void for_words_again(i64 vector, const Use& use) const {
#pragma unroll 1
    for (int i = 0; i < kLoads; ++i) {
      const i64 number = vector + i * kThreads;
      const uint4 of_a = vector_of(a, number), of_b = vector_of(b, number);
      use(low_word(of_a), low_word(of_b), 2 * number);
      use(high_word(of_a), high_word(of_b), 2 * number + 1);
    }
  }
};

/// Returns about the quotient, or something less: a float's division in one instruction is precise for some divisors.
__device__ inline float least_quotient(float difference, float by) {
  return by >= 0x1p-126F ? __fdividef(difference, by) : 0.0F;
}
__device__ inline double least_quotient(double difference, double by) { return difference / by; }

/// The largest differences so far.
template <typename Number>
struct Largest {
  Maxima maxima;
  Bounds<Number> bounds;
};

/// Takes the largest differences of a step. The bounds are raised to what the step itself holds first: of its elements,
/// few then have to be divided in double. Not inlined: its registers are not for the steps that do not come here.
template <typename Element>
__device__ __noinline__ Largest<typename Element::Number> with_step(const Buffers& buffers, i64 vector,
                                                                    Largest<typename Element::Number> largest) {
  using Number = typename Element::Number;
  Number most_abs = 0, most_rel = 0;
  buffers.for_words_again(vector, [&](u64 a, u64 b, i64) {
    for_numbers<Element>(a, b, [&](Number x, Number y) {
      const Number difference = fabs(x - y);
      // A maximum passes over NaNs.
      most_abs = fmax(most_abs, difference);
      most_rel = fmax(most_rel, least_quotient(difference, fabs(x)));
    });
  });
  // What is beyond the range of Number may be within that of double.
  constexpr Number kMost = std::numeric_limits<Number>::max();
  largest.bounds.raise(fmin(most_abs, kMost), fmin(most_rel, kMost));
  largest.bounds.share();
  const Limit<Number> limit(largest.bounds);
  buffers.for_words_again(vector, [&](u64 a, u64 b, i64) {
    for_numbers<Element>(a, b, [&](Number x, Number y) {
      if (limit.is_reached(x, fabs(x - y))) largest.maxima.add(x, y);
    });
  });
  largest.bounds.raise(largest.maxima.abs, largest.maxima.rel);
  largest.bounds.share();
  largest.bounds.give(buffers.bounds);
  return largest;
}

/// Compares one thread's share of the vectors.
template <typename Element>
class Comparison {
 public:
  __device__ explicit Comparison(const Buffers& buffers) : buffers_(buffers) {}

  /// Compares a step's vectors, the first of which is number `vector`.
  __device__ void add(i64 vector) {
    uint4 of_a[kLoads], of_b[kLoads];
    load(vector, of_a, of_b);
    if constexpr (kHasNumbers)
      if (steps_++ % kStepsAlone == 0) largest_.bounds.take(buffers_.bounds);
    u32 unequal = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      unequal |= (of_a[i].x ^ of_b[i].x) | (of_a[i].y ^ of_b[i].y) | (of_a[i].z ^ of_b[i].z) | (of_a[i].w ^ of_b[i].w);
    if (unequal == 0)
      add_equal(of_a);
    else
      add_unequal(vector, of_a, of_b);
  }

  __device__ Partial partial() const {
    return {differing_, first_, largest_.maxima.abs, largest_.maxima.rel, nan_in_one_, nan_in_both_};
  }

 private:
  static constexpr bool kHasNumbers = !std::is_same_v<Element, Bits>;
  using Number = typename Element::Number;

  __device__ void load(i64 vector, uint4 (&of_a)[kLoads], uint4 (&of_b)[kLoads]) const {
    constexpr i64 kStep = kThreads * kVectorBytes;
    const i64 at = vector * kVectorBytes;
    const bool whole = buffers_.aligned && at + (kLoads - 1) * kStep + kVectorBytes <= buffers_.bytes;
    if (whole) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        of_a[i] = load_once(reinterpret_cast<const uint4*>(buffers_.a + at + i * kStep));
        of_b[i] = load_once(reinterpret_cast<const uint4*>(buffers_.b + at + i * kStep));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        of_a[i] = buffers_.vector_of(buffers_.a, vector + i * kThreads);
        of_b[i] = buffers_.vector_of(buffers_.b, vector + i * kThreads);
      }
    }
  }

  __device__ void add_equal(const uint4 (&vectors)[kLoads]) {
    int nans = 0;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      nans +=
          __popcll(buffers_.lanes.nans(low_word(vectors[i]))) + __popcll(buffers_.lanes.nans(high_word(vectors[i])));
    nan_in_both_ += nans;
  }

  __device__ void add_unequal(i64 vector, const uint4 (&of_a)[kLoads], const uint4 (&of_b)[kLoads]) {
    const u32 before = differing_;
    bool is_reached = false, has_nans = false;
    const Limit<Number> limit(largest_.bounds);
    for_words(of_a, of_b, [&](u64 a, u64 b) {
      differing_ += __popcll(buffers_.lanes.differing(a, b));
      if constexpr (kHasNumbers)
        for_numbers<Element>(a, b, [&](Number x, Number y) {
          const Number difference = fabs(x - y);
          is_reached |= limit.is_reached(x, difference);
          has_nans |= isnan(difference);
        });
    });
    if (before == 0 && differing_ > 0) find_first(vector);
    if (has_nans)
      for_words(of_a, of_b, [&](u64 a, u64 b) {
        const u64 nans_a = buffers_.lanes.nans(a), nans_b = buffers_.lanes.nans(b);
        nan_in_one_ += __popcll(nans_a ^ nans_b);
        nan_in_both_ += __popcll(nans_a & nans_b);
      });
    if constexpr (kHasNumbers)
      if (is_reached) largest_ = with_step<Element>(buffers_, vector, largest_);
  }

  /// Calls `use` with each pair of words of loaded vectors.
  template <typename Use>
  __device__ static void for_words(const uint4 (&of_a)[kLoads], const uint4 (&of_b)[kLoads], const Use& use) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      use(low_word(of_a[i]), low_word(of_b[i]));
      use(high_word(of_a[i]), high_word(of_b[i]));
    }
  }

  __device__ void find_first(i64 vector) {
    const int log2_bits = buffers_.lanes.log2_bits;
    buffers_.for_words_again(vector, [&](u64 a, u64 b, i64 number) {
      const u64 unequal = buffers_.lanes.differing(a, b);
      if (unequal == 0 || first_ != kNone) return;
      first_ = ((number * 64) >> log2_bits) + ((__ffsll(static_cast<long long>(unequal)) - 1) >> log2_bits);
    });
  }

  /// Steps from one look at the bounds of all blocks to the next. A look costs equal sides time.
  [[maybe_unused]] static constexpr u32 kStepsAlone = 4;
  static constexpr i64 kNone = std::numeric_limits<i64>::max();
  const Buffers& buffers_;
  u32 differing_ = 0;
  u32 nan_in_one_ = 0;
  u32 nan_in_both_ = 0;
  u32 steps_ = 0;
  i64 first_ = kNone;
  Largest<Number> largest_;
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

template <typename Element>
__global__ void __launch_bounds__(kThreads, kBlocks)
    compare_kernel(const __grid_constant__ Buffers buffers, Partial* partials) {
  constexpr i64 kBlockVectors = kLoads * kThreads;
  const i64 count = buffers.vectors();
  Comparison<Element> comparison(buffers);
  for (i64 vector = blockIdx.x * kBlockVectors + threadIdx.x; vector < count; vector += gridDim.x * kBlockVectors)
    comparison.add(vector);
  using Reduce = cub::BlockReduce<Partial, kThreads>;
  __shared__ typename Reduce::TempStorage storage;
  const Partial sum = Reduce(storage).Reduce(comparison.partial(), Merge{});
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

using CompareKernel = void (*)(Buffers, Partial*);

CompareKernel kernel_for(Dtype dtype) {
  switch (dtype) {
    case Dtype::F16: return compare_kernel<Half>;
    case Dtype::BF16: return compare_kernel<BFloat>;
    case Dtype::F32: return compare_kernel<Float>;
    case Dtype::F64: return compare_kernel<Double>;
    default: return compare_kernel<Bits>;
  }
}

/// Enough blocks to fill the device; of a small tensor, as many as have something to do.
int blocks_for(const Buffers& buffers) {
  int device = 0, multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  constexpr i64 kBlockVectors = kLoads * kThreads;
  return static_cast<int>(
      std::min<i64>(i64{multiprocessors} * kBlocks, (buffers.vectors() + kBlockVectors - 1) / kBlockVectors));
}

/// One partial result of each block, and Thrust's reduction of those.
Partial compare(Buffers buffers, i64 count, Dtype dtype, GpuStream stream) {
  const int blocks = blocks_for(buffers);
  const std::size_t partial_bytes = static_cast<std::size_t>(blocks) * sizeof(Partial);
  const std::size_t bytes = partial_bytes + sizeof(SharedBounds);
  StreamAllocator allocator{stream};
  const auto free = [&](char* memory) { allocator.deallocate(memory, bytes); };
  const std::unique_ptr<char, decltype(free)> memory(allocator.allocate(bytes), free);
  auto* const partials = reinterpret_cast<Partial*>(memory.get());
  buffers.bounds = reinterpret_cast<SharedBounds*>(memory.get() + partial_bytes);
  CUDA_CHECK(cudaMemsetAsync(buffers.bounds, 0, sizeof(SharedBounds), stream));
  kernel_for(dtype)<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(buffers, partials);
  check_launch("diff_stats", [&] { return diff_shape(count, dtype); });
  return thrust::reduce(thrust::cuda::par(allocator).on(stream), partials, partials + blocks, Partial{}, Merge{});
}

}  // namespace

DiffStats diff_stats(const void* a, const void* b, i64 count, Dtype dtype, GpuStream stream) {
  check_diff_arguments(a, b, count, dtype);
  if (count == 0) return {};
  const auto address_bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b);
  const Buffers buffers{.a = static_cast<const std::byte*>(a),
                        .b = static_cast<const std::byte*>(b),
                        .bytes = count * (dtype_bits(dtype) / 8),
                        .lanes = lanes_of(dtype),
                        .aligned = address_bits % kVectorBytes == 0};
  try {
    const Partial found = compare(buffers, count, dtype, stream);
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
