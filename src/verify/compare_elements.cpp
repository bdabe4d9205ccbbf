#include "verify/compare_elements.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>

#include "core/simd.hpp"
#include "exec/backends.hpp"
#include "kernels/copy/compare_parts.hpp"

#define ALWAYS_INLINE __attribute__((always_inline)) inline

namespace glu_ckpt {
namespace {

using u16 = std::uint16_t;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
/// Elements that are compared at a time: equal ones are skipped so many together, and their values stay in the L1
/// cache.
constexpr i64 kPart = kPartElements;
/// Sums are kept in so many lanes, of elements whose indices have equal remainders, at every length of registers.
constexpr int kLanes = kPartLanes;
/// A GPU takes about so many bytes of one side at a time.
constexpr i64 kDeviceBytes = i64{8} << 20;

struct ElementRun {
  Dtype dtype_a;
  Dtype dtype_b;
  const std::byte* a;
  const std::byte* b;
  i64 count;
};

/// Selects rather than branches, so that the compiler takes several elements at a time.
ALWAYS_INLINE double half_value(u16 bits) {
  constexpr u32 kInfinity = 0x7c00;
  const u32 magnitude = bits & u32{0x7fff};
  const u32 sign = (bits & u32{0x8000}) << 16;
  // Scaled by 2^112, the difference of the exponents' biases; subnormals come out right, too.
  const u32 finite = std::bit_cast<u32>(std::bit_cast<float>(magnitude << 13) * 0x1p112F);
  const u32 special = 0x7f80'0000 | (magnitude << 13 & 0x007f'ffff);
  return static_cast<double>(std::bit_cast<float>(sign | (magnitude >= kInfinity ? special : finite)));
}

ALWAYS_INLINE double bfloat_value(u16 bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<u32>(bits) << 16));
}

ALWAYS_INLINE double float_value(float value) { return value; }

template <typename Stored, double (*kValue)(Stored)>
ALWAYS_INLINE void widen_part(const std::byte* data, i64 count, double* out) {
  for (i64 i = 0; i < count; ++i) {
    Stored stored{};
    std::memcpy(&stored, data + i * static_cast<i64>(sizeof stored), sizeof stored);
    out[i] = kValue(stored);
  }
}

ALWAYS_INLINE void widen(Dtype dtype, const std::byte* data, i64 count, double* out) {
  if (dtype == Dtype::BF16)
    widen_part<u16, bfloat_value>(data, count, out);
  else if (dtype == Dtype::F16)
    widen_part<u16, half_value>(data, count, out);
  else if (dtype == Dtype::F32)
    widen_part<float, float_value>(data, count, out);
  else
    std::memcpy(out, data, static_cast<std::size_t>(count) * sizeof *out);
}

ALWAYS_INLINE double sum_squares(const double* x, i64 padded) {
  alignas(64) double squares[kLanes] = {};
  for (i64 i = 0; i < padded; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) squares[lane] += x[i + lane] * x[i + lane];
  double sum = 0;
  for (const double lane : squares) sum += lane;
  return sum;
}

/// The squares of the elements whose difference is finite. Sums without a look at each are finite where all are, and
/// take half the time; else the others become 0 in both, which are lost by that.
ALWAYS_INLINE void measure_norms(double* x, double* y, i64 padded, ElementDiff& found) {
  found.squares_a = sum_squares(x, padded);
  found.squares_b = x == y ? found.squares_a : sum_squares(y, padded);
  if (std::isfinite(found.squares_a) && std::isfinite(found.squares_b)) return;
  for (i64 i = 0; i < padded; ++i)
    if (!(std::fabs(x[i] - y[i]) < kInfinite)) x[i] = y[i] = 0;
  found.squares_a = sum_squares(x, padded);
  found.squares_b = sum_squares(y, padded);
}

/// The values' part of the result.
ALWAYS_INLINE void measure(const ElementRun& run, ElementDiff& found) {
  alignas(64) double x[kPart], y[kPart];
  widen(run.dtype_a, run.a, run.count, x);
  widen(run.dtype_b, run.b, run.count, y);
  // The lanes behind the last element get equal values.
  const i64 padded = (run.count + kLanes - 1) / kLanes * kLanes;
  for (i64 i = run.count; i < padded; ++i) x[i] = y[i] = 0;
  alignas(64) double largest[kLanes] = {}, relative[kLanes] = {}, squares[kLanes] = {}, nans[kLanes] = {};
  for (i64 i = 0; i < padded; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const double a = x[i + lane], b = y[i + lane];
      const double raw = std::fabs(a - b);
      // A NaN, and an infinity less itself, count as 0 here; so does 0 / 0 below.
      const double difference = raw == raw ? raw : 0.0;
      const double quotient = difference / std::fabs(a);
      const double ratio = quotient == quotient ? quotient : 0.0;
      largest[lane] = difference > largest[lane] ? difference : largest[lane];
      relative[lane] = ratio > relative[lane] ? ratio : relative[lane];
      squares[lane] += difference * difference;
      nans[lane] += raw == raw ? 0.0 : 1.0;
    }
  double nan = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    found.max_abs = std::max(found.max_abs, largest[lane]);
    found.max_rel = std::max(found.max_rel, relative[lane]);
    found.sum_squares += squares[lane];
    nan += nans[lane];
  }
  if (found.max_abs == kInfinite) found.max_rel = kInfinite;
  if (nan != 0)
    for (i64 i = 0; i < run.count; ++i) found.nan_in_one += std::isnan(x[i]) != std::isnan(y[i]) ? 1 : 0;
  measure_norms(x, y, padded, found);
}

/// The same of a part whose bits are equal.
ALWAYS_INLINE void measure_equal(const ElementRun& run, ElementDiff& found) {
  alignas(64) double x[kPart];
  widen(run.dtype_a, run.a, run.count, x);
  const i64 padded = (run.count + kLanes - 1) / kLanes * kLanes;
  for (i64 i = run.count; i < padded; ++i) x[i] = 0;
  measure_norms(x, x, padded, found);
}

template <typename Bits>
ALWAYS_INLINE i64 count_unequal(const ElementRun& run) {
  i64 unequal = 0;
  for (i64 i = 0; i < run.count; ++i) {
    Bits left{}, right{};
    std::memcpy(&left, run.a + i * static_cast<i64>(sizeof left), sizeof left);
    std::memcpy(&right, run.b + i * static_cast<i64>(sizeof right), sizeof right);
    unequal += left != right ? 1 : 0;
  }
  return unequal;
}

/// Counts unequal values of two dtypes; NaNs are equal to each other.
ALWAYS_INLINE i64 count_unequal_values(const ElementRun& run) {
  double x[kPart], y[kPart];
  widen(run.dtype_a, run.a, run.count, x);
  widen(run.dtype_b, run.b, run.count, y);
  i64 unequal = 0;
  for (i64 i = 0; i < run.count; ++i) unequal += x[i] != y[i] && (x[i] == x[i] || y[i] == y[i]) ? 1 : 0;
  return unequal;
}

bool is_equal(const ElementRun& run) {
  return run.dtype_a == run.dtype_b &&
         std::memcmp(run.a, run.b, static_cast<std::size_t>(run.count * counted_bytes(run.dtype_a))) == 0;
}

ALWAYS_INLINE void compare_part(const ElementRun& run, ElementDiff& found) {
  if (is_equal(run)) {
    if (has_numbers(run.dtype_a)) measure_equal(run, found);
    return;
  }
  const i64 bytes = counted_bytes(run.dtype_a);
  found.differing = run.dtype_a != run.dtype_b ? count_unequal_values(run)
                    : bytes == 1               ? count_unequal<std::uint8_t>(run)
                    : bytes == 2               ? count_unequal<u16>(run)
                    : bytes == 4               ? count_unequal<u32>(run)
                                               : count_unequal<u64>(run);
  if (has_numbers(run.dtype_a) && has_numbers(run.dtype_b)) measure(run, found);
}

using PartFunction = void(const ElementRun&, ElementDiff&);

GLU_CKPT_AVX512 void part_avx512(const ElementRun& run, ElementDiff& found) { compare_part(run, found); }
GLU_CKPT_AVX2 void part_avx2(const ElementRun& run, ElementDiff& found) { compare_part(run, found); }
void part_plain(const ElementRun& run, ElementDiff& found) { compare_part(run, found); }

/// The first element of run that differ.
i64 first_unequal(ElementRun run) {
  const i64 count = run.count, step_a = counted_bytes(run.dtype_a), step_b = counted_bytes(run.dtype_b);
  run.count = 1;
  for (i64 i = 0; i < count; ++i, run.a += step_a, run.b += step_b) {
    ElementDiff one;
    part_plain(run, one);
    if (one.differing != 0) return i;
  }
  return -1;
}

}  // namespace

namespace {

i64 element_count(Dtype dtype_a, std::span<const std::byte> a, Dtype dtype_b, std::span<const std::byte> b) {
  return std::min(static_cast<i64>(a.size()) / counted_bytes(dtype_a),
                  static_cast<i64>(b.size()) / counted_bytes(dtype_b));
}

class HostComparer final : public GroupComparer {
 public:
  std::vector<ElementDiff> compare(Dtype dtype_a, std::span<const std::byte> a, Dtype dtype_b,
                                   std::span<const std::byte> b, i64 group) override {
    const i64 count = element_count(dtype_a, a, dtype_b, b);
    std::vector<ElementDiff> found;
    for (i64 begin = 0; begin < count; begin += group) {
      const auto part = [&](std::span<const std::byte> side, Dtype dtype) {
        const i64 unit = counted_bytes(dtype);
        return side.subspan(static_cast<std::size_t>(begin * unit),
                            static_cast<std::size_t>(std::min(group, count - begin) * unit));
      };
      found.push_back(compare_elements(dtype_a, part(a, dtype_a), dtype_b, part(b, dtype_b)));
    }
    return found;
  }
};

class DeviceComparer final : public GroupComparer {
 public:
  explicit DeviceComparer(int device) : parts_(device) {}

  std::vector<ElementDiff> compare(Dtype dtype_a, std::span<const std::byte> a, Dtype dtype_b,
                                   std::span<const std::byte> b, i64 group) override {
    const i64 count = element_count(dtype_a, a, dtype_b, b);
    // What is equal has norms alone, for which it need not cross the bus.
    if (count > 0 && is_equal({dtype_a, dtype_b, a.data(), b.data(), count}))
      return HostComparer().compare(dtype_a, a, dtype_b, b, group);
    const i64 unit = std::max(counted_bytes(dtype_a), counted_bytes(dtype_b));
    const i64 taken = std::max<i64>(1, kDeviceBytes / unit / group) * group;
    std::vector<ElementDiff> found;
    for (i64 begin = 0; begin < count; begin += taken)
      add(found,
          parts_.compare(dtype_a, a.data() + begin * counted_bytes(dtype_a), dtype_b,
                         b.data() + begin * counted_bytes(dtype_b), std::min(taken, count - begin), group),
          std::min(taken, count - begin), group);
    return found;
  }

 private:
  static void add(std::vector<ElementDiff>& found, std::span<const PartDiff> parts, i64 count, i64 group) {
    for (i64 in_group = 0, left = count; const PartDiff& part : parts) {
      if (in_group == 0) found.emplace_back();
      const i64 elements = std::min({kPartElements, group - in_group, left});
      append(found.back(), {elements, part.differing, part.first, part.max_abs, part.max_rel, part.sum_squares,
                            part.squares_a, part.squares_b, part.nan_in_one});
      left -= elements;
      in_group = in_group + elements == group ? 0 : in_group + elements;
    }
  }

  PartComparer parts_;
};

}  // namespace

std::unique_ptr<GroupComparer> make_comparer(const Backend& backend, int worker) {
  const std::vector<int> devices = devices_of(backend);
  if (devices.empty()) return std::make_unique<HostComparer>();
  return std::make_unique<DeviceComparer>(devices[static_cast<std::size_t>(worker) % devices.size()]);
}

double ElementDiff::rms() const { return elements > 0 ? std::sqrt(sum_squares / static_cast<double>(elements)) : 0; }

double ElementDiff::relative_norm() const {
  return sum_squares == 0 ? 0 : std::sqrt(sum_squares) / std::sqrt(squares_a);
}

double ElementDiff::cosine() const {
  const double a = std::sqrt(squares_a), b = std::sqrt(squares_b);
  // The law of cosines, solved for what the cosine lacks to 1, which is exact where A and B are nearly parallel.
  const double lacks = (sum_squares - (a - b) * (a - b)) / (2 * a * b);
  return std::isfinite(lacks) ? std::clamp(1 - lacks, -1.0, 1.0) : std::numeric_limits<double>::quiet_NaN();
}

std::vector<ChangedPart> changed_parts(const std::vector<TensorDiff>& tensors) {
  std::vector<ChangedPart> parts;
  std::map<std::pair<std::string, i64>, std::size_t> of_expert;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorDiff& tensor = tensors[i];
    const auto [at, is_new] =
        of_expert.try_emplace({tensor.expert < 0 ? tensor.name : tensor.layer, tensor.expert}, parts.size());
    if (is_new)
      parts.push_back(
          {tensor.expert < 0 ? tensor.name : fmt::format("layer {} routed expert {}", tensor.layer, tensor.expert), i});
    ChangedPart& part = parts[at->second];
    ++part.tensors;
    if (tensor.has_numbers && tensor.elements) append(part.numbers, *tensor.elements);
  }
  return parts;
}

std::vector<ChangedPart> far_off(const std::vector<TensorDiff>& tensors, std::size_t most) {
  constexpr std::size_t kFew = 8;
  constexpr double kTimesMedian = 4;
  std::vector<ChangedPart> found = changed_parts(tensors);
  const auto has_nan = [](const ChangedPart& one) { return one.numbers.nan_in_one > 0; };
  std::vector<ChangedPart> broken;
  if (found.size() > kFew) std::ranges::copy_if(found, std::back_inserter(broken), has_nan);
  std::ranges::stable_sort(broken, std::ranges::greater(),
                           [](const ChangedPart& one) { return one.numbers.nan_in_one; });
  // What was 0 is infinitely far from it, and says nothing about the rest.
  std::erase_if(found, [&](const ChangedPart& one) {
    return has_nan(one) || !std::isfinite(one.numbers.relative_norm()) || one.numbers.elements == 0;
  });
  if (broken.size() > most) broken.resize(most);
  if (found.size() <= kFew) return broken;
  const auto distance = [](const ChangedPart& one) { return one.numbers.relative_norm(); };
  std::ranges::stable_sort(found, std::ranges::greater(), distance);
  const double median = distance(found[found.size() / 2]);
  for (ChangedPart& one : found) one.times = distance(one) / median;
  std::erase_if(found, [&](const ChangedPart& one) { return !(distance(one) > kTimesMedian * median); });
  broken.insert(broken.end(), found.begin(), found.end());
  if (broken.size() > most) broken.resize(most);
  return broken;
}

void append(ElementDiff& total, const ElementDiff& next) {
  if (total.first < 0 && next.first >= 0) total.first = total.elements + next.first;
  total.elements += next.elements;
  total.differing += next.differing;
  total.max_abs = std::max(total.max_abs, next.max_abs);
  total.max_rel = std::max(total.max_rel, next.max_rel);
  total.sum_squares += next.sum_squares;
  total.squares_a += next.squares_a;
  total.squares_b += next.squares_b;
  total.nan_in_one += next.nan_in_one;
}

bool has_numbers(Dtype dtype) {
  return dtype == Dtype::BF16 || dtype == Dtype::F16 || dtype == Dtype::F32 || dtype == Dtype::F64;
}

i64 counted_bytes(Dtype dtype) { return std::max(1, dtype_bits(dtype) / 8); }

ElementDiff compare_elements(Dtype dtype_a, std::span<const std::byte> a, Dtype dtype_b, std::span<const std::byte> b) {
  static PartFunction* const function = fastest(part_avx512, part_avx2, part_plain);
  const i64 step_a = counted_bytes(dtype_a), step_b = counted_bytes(dtype_b);
  const i64 count = std::min(static_cast<i64>(a.size()) / step_a, static_cast<i64>(b.size()) / step_b);
  ElementDiff total;
  for (i64 begin = 0; begin < count; begin += kPart) {
    const ElementRun run{dtype_a, dtype_b, a.data() + begin * step_a, b.data() + begin * step_b,
                         std::min(kPart, count - begin)};
    ElementDiff found;
    function(run, found);
    if (found.differing > 0 && total.first < 0) found.first = first_unequal(run);
    found.elements = run.count;
    append(total, found);
  }
  return total;
}

}  // namespace glu_ckpt
