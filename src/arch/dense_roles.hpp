#pragma once
/// The roles of the matrices outside of the experts, and their sizes.

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

}  // namespace glu_ckpt
