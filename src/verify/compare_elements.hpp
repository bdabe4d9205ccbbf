#pragma once
/// Compares elements in memory: by bits, and where they are floats by how much.

#include <span>

#include "glu_ckpt/diff.hpp"

namespace glu_ckpt {

/// Whether elements of this dtype are numbers that compare_elements() takes differences of.
bool has_numbers(Dtype dtype);

/// Bytes in which elements of this dtype are counted: 1 where several share a byte.
i64 counted_bytes(Dtype dtype);

/// Compares as many elements of `b` with those of `a` as both hold; of one dtype, or of two with numbers. Parts that
/// are equal cost no more than memcmp. The sum is made in one order, whatever the processor.
ElementDiff compare_elements(Dtype dtype_a, std::span<const std::byte> a, Dtype dtype_b, std::span<const std::byte> b);

}  // namespace glu_ckpt
