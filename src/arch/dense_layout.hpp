#pragma once
/// Computes where the matrices outside of the experts lie in their tensors, for reading and for writing alike.

#include "arch/dense_table.hpp"

namespace glu_ckpt {

/// Rows of the tensor, of all its matrices together.
i64 dense_rows(const DenseRow& row, TensorKind kind, const Architecture& architecture);

/// The tensor's shape, of one layer.
std::vector<i64> dense_shape(const DenseRow& row, TensorKind kind, const Architecture& architecture);

/// The place of the row's matrix number `number` in the tensor of one layer, whose elements have that many bytes.
/// `glu` is the order of gate and up in a dense model's FC1; other models have all of gate before all of up.
Placement dense_placement(const DenseRow& row, std::size_t number, TensorKind kind, i64 element_bytes,
                          const Architecture& architecture, const Glu& glu = {});

}  // namespace glu_ckpt
