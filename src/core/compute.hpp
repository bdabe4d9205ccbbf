#pragma once
/// Tensors whose elements are computed from another's.

#include <span>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// "x - 1 in F32": the operation as a person reads it.
std::string_view to_string(ComputeOp op);

/// Computes the elements of `out`, of dtype `to`, from those of `in`, of dtype `from`: as many. Both are BF16, F16 or
/// F32. Every element is computed in F32 and rounded to nearest even, so the bits are the same on every machine. Throws
/// NotExact where a dtype is another.
void compute(ComputeOp op, Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out);

/// The operation that undoes `op`.
ComputeOp inverse(ComputeOp op);

/// The first element that does not come back, bit for bit, when `op` to dtype `to` is undone; -1 where all do.
i64 first_lost(ComputeOp op, Dtype from, std::span<const std::byte> in, Dtype to);

}  // namespace glu_ckpt
