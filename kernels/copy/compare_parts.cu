/// Eight threads compare a part of 1024 elements, each those of one lane in their order: double additions do not
/// commute in groups, and the CPU sums in the same lanes. What is slow on a GPU in that is still faster than the bus.

#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "kernels/common/cuda_check.hpp"
#include "kernels/common/device_buffer.hpp"
#include "kernels/copy/compare_parts.hpp"

namespace glu_ckpt {
namespace {

constexpr int kBlockThreads = 256;
constexpr int kBlockParts = kBlockThreads / kPartLanes;

struct Groups {
  i64 count;
  i64 group;
  i64 parts_per_group;

  i64 parts() const {
    const i64 rest = count % group;
    return count / group * parts_per_group + (rest + kPartElements - 1) / kPartElements;
  }
};

// kHasValue is said, not found by a requires-expression: in a lambda of the host's code, nvcc 13.0 takes that for
// false.
struct HalfNumber {
  static constexpr bool kHasValue = true;
  using Bits = unsigned short;
  static __device__ double value(Bits bits) { return static_cast<double>(__half2float(__ushort_as_half(bits))); }
};
struct BFloatNumber {
  static constexpr bool kHasValue = true;
  using Bits = unsigned short;
  static __device__ double value(Bits bits) { return static_cast<double>(__uint_as_float(u32{bits} << 16)); }
};
struct FloatNumber {
  static constexpr bool kHasValue = true;
  using Bits = u32;
  static __device__ double value(Bits bits) { return static_cast<double>(__uint_as_float(bits)); }
};
struct DoubleNumber {
  static constexpr bool kHasValue = true;
  using Bits = u64;
  static __device__ double value(Bits bits) { return __longlong_as_double(static_cast<long long>(bits)); }
};
template <typename Word>
struct NoNumber {
  static constexpr bool kHasValue = false;
  using Bits = Word;
};

struct Lane {
  i64 differing = 0;
  i64 first = kPartElements;
  double max_abs = 0;
  double max_rel = 0;
  double sum_squares = 0;
  double squares_a = 0;
  double squares_b = 0;
  i64 nan_in_one = 0;

  // A fused multiply-add would round once where the CPU rounds twice.
  static __device__ void add_square(double& sum, double x) { sum = __dadd_rn(sum, __dmul_rn(x, x)); }

  __device__ void add_norms(double a, double b) {
    if (!(fabs(a - b) < HUGE_VAL)) return;
    add_square(squares_a, a);
    add_square(squares_b, b);
  }

  __device__ void add_values(double a, double b) {
    const double raw = fabs(a - b);
    // A NaN, and an infinity less itself, count as 0; so does 0 / 0 below.
    const double difference = raw == raw ? raw : 0.0;
    const double quotient = difference / fabs(a);
    const double ratio = quotient == quotient ? quotient : 0.0;
    max_abs = difference > max_abs ? difference : max_abs;
    max_rel = ratio > max_rel ? ratio : max_rel;
    add_square(sum_squares, difference);
    nan_in_one += isnan(a) != isnan(b) ? 1 : 0;
  }
};

template <typename A, typename B>
__device__ void add_element(Lane& lane, typename A::Bits a, typename B::Bits b, i64 index) {
  bool differs = false;
  if constexpr (std::is_same_v<A, B>)
    differs = a != b;
  else
    differs = A::value(a) != B::value(b) && !(isnan(A::value(a)) && isnan(B::value(b)));
  if (differs && lane.differing++ == 0) lane.first = index;
  if constexpr (A::kHasValue && B::kHasValue) {
    lane.add_norms(A::value(a), B::value(b));
    // Equal bits are no difference: not even a NaN.
    if (differs) lane.add_values(A::value(a), B::value(b));
  }
}

template <typename A, typename B>
__global__ void __launch_bounds__(kBlockThreads)
    compare_parts(const typename A::Bits* a, const typename B::Bits* b, Groups groups, i64 parts, PartDiff* out) {
  __shared__ Lane lanes[kBlockThreads];
  const i64 part = i64{blockIdx.x} * kBlockParts + threadIdx.x / kPartLanes;
  Lane& mine = lanes[threadIdx.x];
  Lane lane;
  if (part < parts) {
    const i64 in_group = part % groups.parts_per_group * kPartElements;
    const i64 group_begin = part / groups.parts_per_group * groups.group;
    const i64 begin = group_begin + in_group;
    const i64 in_this_group = min(groups.group, groups.count - group_begin);
    const i64 count = min(kPartElements, in_this_group - in_group);
    for (i64 i = threadIdx.x % kPartLanes; i < count; i += kPartLanes)
      add_element<A, B>(lane, a[begin + i], b[begin + i], i);
  }
  mine = lane;
  __syncthreads();
  if (part >= parts || threadIdx.x % kPartLanes != 0) return;
  Lane sum = lane;
  for (int next = 1; next < kPartLanes; ++next) {
    const Lane& other = lanes[threadIdx.x + next];
    sum.differing += other.differing;
    sum.first = min(sum.first, other.first);
    sum.max_abs = fmax(sum.max_abs, other.max_abs);
    sum.max_rel = fmax(sum.max_rel, other.max_rel);
    sum.sum_squares = __dadd_rn(sum.sum_squares, other.sum_squares);
    sum.squares_a = __dadd_rn(sum.squares_a, other.squares_a);
    sum.squares_b = __dadd_rn(sum.squares_b, other.squares_b);
    sum.nan_in_one += other.nan_in_one;
  }
  if (isinf(sum.max_abs)) sum.max_rel = sum.max_abs;
  out[part] = {sum.differing,   sum.differing > 0 ? sum.first : -1,
               sum.max_abs,     sum.max_rel,
               sum.sum_squares, sum.squares_a,
               sum.squares_b,   sum.nan_in_one};
}

/// Calls `f` with the type of the dtype's numbers; false if it has none.
template <typename F>
bool with_number(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::F16: f(HalfNumber()); break;
    case Dtype::BF16: f(BFloatNumber()); break;
    case Dtype::F32: f(FloatNumber()); break;
    case Dtype::F64: f(DoubleNumber()); break;
    default: return false;
  }
  return true;
}

/// Calls `f` with the type of bits as long as the dtype's elements.
template <typename F>
void with_bits(Dtype dtype, const F& f) {
  switch (dtype_bits(dtype)) {
    case 16: return f(NoNumber<unsigned short>());
    case 32: return f(NoNumber<u32>());
    case 64: return f(NoNumber<u64>());
    default: return f(NoNumber<unsigned char>());
  }
}

}  // namespace

struct PartComparer::State {
  explicit State(int index) : device(index) {
    CUDA_CHECK(cudaSetDevice(device));
    stream = std::make_unique<CudaStream>();
  }

  /// Makes room for `bytes`, aligned, in one of the buffers; what was in it is lost.
  template <typename Buffer>
  static std::byte* room(Buffer& buffer, i64 bytes) {
    if (buffer.bytes() < bytes) {
      buffer = {};
      buffer = Buffer(bytes);
    }
    return buffer.data();
  }

  template <typename Element>
  const Element* upload(DeviceBuffer& buffer, const std::byte* from, i64 count) {
    const i64 bytes = count * static_cast<i64>(sizeof(Element));
    std::byte* const to = room(buffer, bytes);
    CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream->get()));
    return reinterpret_cast<const Element*>(to);
  }

  int device;
  std::unique_ptr<CudaStream> stream;
  DeviceBuffer a, b, parts;
  PinnedBuffer result;
};

PartComparer::PartComparer(int device) : state_(std::make_unique<State>(device)) {}

PartComparer::~PartComparer() {
  // The destructor may run on another thread, with another current device, which freeing would open.
  (void)cudaSetDevice(state_->device);
  (void)cudaStreamSynchronize(state_->stream->get());
}

std::span<const PartDiff> PartComparer::compare(Dtype dtype_a, const std::byte* a, Dtype dtype_b, const std::byte* b,
                                                i64 count, i64 group) {
  const Groups groups{count, group, (group + kPartElements - 1) / kPartElements};
  const i64 parts = groups.parts();
  if (parts == 0) return {};
  State& state = *state_;
  CUDA_CHECK(cudaSetDevice(state.device));
  const i64 bytes = parts * static_cast<i64>(sizeof(PartDiff));
  auto* const found = reinterpret_cast<PartDiff*>(State::room(state.parts, bytes));
  const auto launch = [&](auto of_a, auto of_b) {
    using A = decltype(of_a);
    using B = decltype(of_b);
    const auto* const x = state.upload<typename A::Bits>(state.a, a, count);
    const auto* const y = state.upload<typename B::Bits>(state.b, b, count);
    compare_parts<A, B>
        <<<static_cast<unsigned>((parts + kBlockParts - 1) / kBlockParts), kBlockThreads, 0, state.stream->get()>>>(
            x, y, groups, parts, found);
    CUDA_CHECK(cudaGetLastError());
  };
  const bool has_numbers =
      with_number(dtype_a, [&](auto of_a) { with_number(dtype_b, [&](auto of_b) { launch(of_a, of_b); }); });
  if (!has_numbers) with_bits(dtype_a, [&](auto bits) { launch(bits, bits); });
  std::byte* const host = State::room(state.result, bytes);
  CUDA_CHECK(
      cudaMemcpyAsync(host, found, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, state.stream->get()));
  CUDA_CHECK(cudaStreamSynchronize(state.stream->get()));
  return {reinterpret_cast<const PartDiff*>(host), static_cast<std::size_t>(parts)};
}

}  // namespace glu_ckpt
