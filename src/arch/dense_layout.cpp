#include "arch/dense_layout.hpp"

#include "arch/dense_roles.hpp"

namespace glu_ckpt {
namespace {

i64 count_groups(const DenseRow& row, const Glu& glu, const Architecture& architecture) {
  switch (row.groups) {
    case Groups::One: return 1;
    case Groups::Heads: return architecture.heads;
    case Groups::KvHeads: return architecture.kv_heads;
    case Groups::DeltaKeyHeads: return architecture.delta_key_heads;
    case Groups::GluBlocks: {
      const i64 rows = extents_of(row.roles[0], TensorKind::Weight, architecture).rows;
      return glu.kind == Glu::Kind::Interleaved && rows > 0 ? rows / glu.block_rows : 1;
    }
  }
  return 1;
}

}  // namespace

i64 dense_rows(const DenseRow& row, TensorKind kind, const Architecture& architecture) {
  i64 rows = 0;
  for (const DenseRole role : row.all_roles()) rows += extents_of(role, kind, architecture).rows;
  return rows;
}

std::vector<i64> dense_shape(const DenseRow& row, TensorKind kind, const Architecture& architecture) {
  const i64 rows = dense_rows(row, kind, architecture);
  if (kind == TensorKind::Bias) return {rows};
  const DenseRole role = row.roles[0];
  const i64 cols = extents_of(role, kind, architecture).cols;
  // nn.Linear(hidden, 1) is a matrix of one row, where other single rows are vectors.
  const bool is_matrix = shape_of(role).rows != Dim::One || role == DenseRole::SharedGate;
  if (row.form == Form::Conv) return {rows, 1, cols};
  if (is_matrix || row.form == Form::OneRow) return {rows, cols};
  return {cols};
}

Placement dense_placement(const DenseRow& row, std::size_t number, TensorKind kind, i64 element_bytes,
                          const Architecture& architecture, const Glu& glu) {
  const i64 groups = count_groups(row, glu, architecture);
  const auto rows_in_group = [&](DenseRole role) { return extents_of(role, kind, architecture).rows / groups; };
  Placement place;
  place.row_step = extents_of(row.roles[number], kind, architecture).cols * element_bytes;
  place.col_step = element_bytes;
  for (std::size_t before = 0; before < number; ++before)
    place.offset += rows_in_group(row.roles[before]) * place.row_step;
  if (row.paired) {
    place.paired = true;
    place.block_rows = head_rows_of(row.roles[number], architecture);
    place.block_step = place.block_rows * place.row_step;
    return place;
  }
  place.block_rows = rows_in_group(row.roles[number]);
  place.block_step = dense_rows(row, kind, architecture) / groups * place.row_step;
  return place;
}

}  // namespace glu_ckpt
