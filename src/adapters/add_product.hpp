#pragma once
/// Adds the product of an adapter's factors to weights, with the bits of PEFT on a CPU.

#include <span>

#include "core/product_lines.hpp"
#include "core/simd.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Lines of a weight, `count` elements of `dtype` each: element c becomes itself plus scale times the sum over j of
/// coefficients[j] * values[j * stride + c], summed in fp32 with j ascending and one rounding for each j, then rounded
/// to `dtype`, to nearest even; with `scales`, multiplied by those before. Four lines at a time take the least time.
void add_product(std::span<const ProductLine> lines, const ProductVectors& vectors, const Merging& merging, Dtype dtype,
                 i64 count, SimdLevel level = simd_levels().front());

/// Does the same for checks, one element after the other.
void add_product_one_by_one(std::span<const ProductLine> lines, const ProductVectors& vectors, const Merging& merging,
                            Dtype dtype, i64 count);

}  // namespace glu_ckpt
