/// diff_stats in host memory, from the definition. Shares neither index arithmetic nor the reading of bits with the
/// kernel, whose oracle it is.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "kernels/copy/diff_stats.hpp"

namespace glu_ckpt {
namespace {

/// IEEE 754 binary16: 1 sign bit, 5 of exponent with bias 15, 10 of significand.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int significand = bits & 1023;
  const double magnitude = exponent == 31  ? (significand == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN())
                           : exponent == 0 ? std::ldexp(significand, -24)
                                           : std::ldexp(1024 + significand, exponent - 25);
  return (bits >> 15) != 0 ? -magnitude : magnitude;
}

/// The upper half of a float.
double bfloat_value(std::uint16_t bits) {
  const u32 wide = static_cast<u32>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

template <typename T>
T element_at(const void* data, i64 index) {
  T value{};
  std::memcpy(&value, static_cast<const std::byte*>(data) + index * static_cast<i64>(sizeof value), sizeof value);
  return value;
}

double relative(double a, double difference) {
  if (difference == 0) return 0;
  return a == 0 || std::isinf(difference) ? HUGE_VAL : difference / std::fabs(a);
}

void add_values(DiffStats& stats, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) {
    ++(std::isnan(a) && std::isnan(b) ? stats.nan_in_both : stats.nan_in_one);
    return;
  }
  // Infinity minus itself is a NaN.
  const double difference = a == b ? 0.0 : std::fabs(a - b);
  stats.max_abs = std::max(stats.max_abs, difference);
  stats.max_rel = std::max(stats.max_rel, relative(a, difference));
}

void count_differing(DiffStats& stats, const void* a, const void* b, i64 element_bytes) {
  const auto* const of_a = static_cast<const std::byte*>(a);
  const auto* const of_b = static_cast<const std::byte*>(b);
  for (i64 i = 0; i < stats.elements; ++i) {
    const i64 at = i * element_bytes;
    if (std::memcmp(of_a + at, of_b + at, static_cast<std::size_t>(element_bytes)) == 0) continue;
    if (stats.differing++ == 0) stats.first = i;
  }
}

template <typename Stored, typename Value>
void compare_values(DiffStats& stats, const void* a, const void* b, const Value& value) {
  for (i64 i = 0; i < stats.elements; ++i)
    add_values(stats, value(element_at<Stored>(a, i)), value(element_at<Stored>(b, i)));
}

double widened(double value) { return value; }

}  // namespace

void check_diff_arguments(const void* a, const void* b, i64 count, Dtype dtype) {
  const int bits = dtype_bits(dtype);
  if (bits % 8 != 0)
    fail(ErrorCode::NotSupported, {}, "{} has {} bits; compare the bytes that hold it, as U8", dtype_name(dtype), bits);
  if (count < 0) fail(ErrorCode::Usage, {}, "{}: the count is negative", diff_shape(count, dtype));
  if (!checked_mul(count, bits)) fail(ErrorCode::ShapeOverflow, {}, "{}: too many", diff_shape(count, dtype));
  if (count == 0) return;
  for (const void* const data : {a, b}) {
    if (data == nullptr) fail(ErrorCode::Usage, {}, "{}: the pointer is null", diff_shape(count, dtype));
    if (reinterpret_cast<std::uintptr_t>(data) % static_cast<unsigned>(bits / 8) != 0)
      fail(ErrorCode::Usage, {}, "{}: not aligned at {}", diff_shape(count, dtype), data);
  }
}

std::string diff_shape(i64 count, Dtype dtype) { return fmt::format("{} elements of {}", count, dtype_name(dtype)); }

DiffStats diff_stats_host(const void* a, const void* b, i64 count, Dtype dtype) {
  check_diff_arguments(a, b, count, dtype);
  DiffStats stats;
  stats.elements = count;
  count_differing(stats, a, b, dtype_bits(dtype) / 8);
  if (dtype == Dtype::F16) compare_values<std::uint16_t>(stats, a, b, half_value);
  if (dtype == Dtype::BF16) compare_values<std::uint16_t>(stats, a, b, bfloat_value);
  if (dtype == Dtype::F32) compare_values<float>(stats, a, b, widened);
  if (dtype == Dtype::F64) compare_values<double>(stats, a, b, widened);
  return stats;
}

void append(DiffStats& total, const DiffStats& next) {
  if (total.first < 0 && next.first >= 0) total.first = total.elements + next.first;
  total.elements += next.elements;
  total.differing += next.differing;
  total.max_abs = std::max(total.max_abs, next.max_abs);
  total.max_rel = std::max(total.max_rel, next.max_rel);
  total.nan_in_one += next.nan_in_one;
  total.nan_in_both += next.nan_in_both;
}

}  // namespace glu_ckpt
