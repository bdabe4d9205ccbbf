#pragma once
/// The matrices outside of the experts: their sizes, and where they lie in their tensors, for reading and for writing
/// alike.

#include "arch/dense_table.hpp"
#include "families/architecture.hpp"

namespace glu_ckpt {

/// Rows and columns of a role, as a logical matrix.
struct RoleShape {
  DenseRole role;
  std::string_view name;
  Dim rows = Dim::One;
  Dim cols = Dim::One;
  /// Rows belong to attention heads, so that a difference can be named by its head.
  bool by_heads = false;
};

const RoleShape& shape_of(DenseRole role);

/// [rows, cols] of a role's weight, or of its bias: one column.
struct DenseExtents {
  i64 rows = 0;
  i64 cols = 0;
};
DenseExtents extents_of(DenseRole role, TensorKind kind, const Architecture& architecture);

/// Rows of one head, where rows are heads'; else 0.
i64 head_rows_of(DenseRole role, const Architecture& architecture);

/// Rows of the tensor, of all its matrices together.
i64 dense_rows(const DenseRow& row, TensorKind kind, const Architecture& architecture);

/// The tensor's shape, of one layer.
std::vector<i64> dense_shape(const DenseRow& row, TensorKind kind, const Architecture& architecture);

/// The place of the row's matrix number `number` in the tensor of one layer, whose elements have that many bytes.
/// `glu` is the order of gate and up in a dense model's FC1; other models have all of gate before all of up.
Placement dense_placement(const DenseRow& row, std::size_t number, TensorKind kind, i64 element_bytes,
                          const Architecture& architecture, const Glu& glu = {});

}  // namespace glu_ckpt
