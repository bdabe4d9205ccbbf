#pragma once
/// Arithmetic on numbers that came out of a file: every overflow is seen before it allocates or indexes.

#include <limits>
#include <optional>
#include <span>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

inline std::optional<i64> checked_add(i64 a, i64 b) {
  i64 sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<i64> checked_mul(i64 a, i64 b) {
  i64 product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// The value as a non-negative i64.
inline std::optional<i64> checked_narrow(u64 value) {
  if (value > static_cast<u64>(std::numeric_limits<i64>::max())) return std::nullopt;
  return static_cast<i64>(value);
}

/// Product of all extents; a zero anywhere does not hide an overflow among the others, as in the
/// reference reader.
inline std::optional<i64> checked_product(std::span<const i64> extents) {
  i64 product = 1;
  for (const i64 extent : extents) {
    const auto next = checked_mul(product, extent);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

/// `value`, or the next multiple of `multiple`.
constexpr i64 round_up(i64 value, i64 multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace glu_ckpt
