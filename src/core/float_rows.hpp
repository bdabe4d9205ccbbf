#pragma once
/// Rows of fp32 values to and from the dtypes of weights. Widening is exact; narrowing rounds to nearest, ties to even.

#include <cstddef>
#include <span>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Whether these functions take it: BF16, F16 or F32.
constexpr bool is_float(Dtype dtype) { return dtype == Dtype::BF16 || dtype == Dtype::F16 || dtype == Dtype::F32; }

/// One element at any address.
float widen_element(const std::byte* data, Dtype dtype);
/// `out` gets as many elements as it holds, from `data` on.
void widen_row(const std::byte* data, Dtype dtype, std::span<float> out);
/// As bits of `dtype`.
void narrow_row(std::span<const float> values, Dtype dtype, std::byte* out);
/// Each value rounded to the values that `dtype` has.
void round_row(std::span<float> values, Dtype dtype);
/// `value` rounded to the values that `dtype` has.
float round_to(float value, Dtype dtype);

}  // namespace glu_ckpt
