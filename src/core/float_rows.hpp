#pragma once
/// fp32 values to and from the dtypes of weights. Widening is exact; narrowing rounds to nearest, ties to even, as
/// frameworks cast their master weights.

#include <cstddef>
#include <span>

#include "core/float_bits.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Returns whether these functions take the dtype: BF16, F16 or F32.
constexpr bool is_float(Dtype dtype) { return dtype == Dtype::BF16 || dtype == Dtype::F16 || dtype == Dtype::F32; }

/// One element at any address.
float widen_element(const std::byte* data, Dtype dtype);
/// `out` gets as many elements as it holds, from `data` on.
void widen_row(const std::byte* data, Dtype dtype, std::span<float> out);
/// Stores the values as bits of `dtype`.
void narrow_row(std::span<const float> values, Dtype dtype, std::byte* out);
/// Each value rounded to the values that `dtype` has.
void round_row(std::span<float> values, Dtype dtype);
/// `value` rounded to the values that `dtype` has.
float round_to(float value, Dtype dtype);

/// Counts the elements of `bytes`, at any address, that are NaN or infinite, of BF16, F16 or F32.
i64 count_not_finite(std::span<const std::byte> bytes, Dtype dtype);

/// Returns whether values of `from` determine those of `to`: fp32 those of bf16 and fp16, and each float dtype its own.
bool can_round(Dtype from, Dtype to);

/// Returns whether each element of `wide`, rounded, has the bits of its element of `narrow`. All NaNs are taken for
/// equal, for casts differ in their payloads. Requires can_round(from, to), and equally many elements.
bool rounds_to(std::span<const std::byte> wide, Dtype from, std::span<const std::byte> narrow, Dtype to);

}  // namespace glu_ckpt
