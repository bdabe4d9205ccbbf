#pragma once
/// Computes where the matrices of an expert lie inside stored tensors: the one function behind every layout.

#include <vector>

#include "glu_ckpt/layout.hpp"

namespace glu_ckpt {

/// The number of a row in the order in which rows are stored, and the row that has a number.
constexpr i64 stored_row(const Placement& place, i64 row) {
  if (!place.paired) return row;
  const i64 half = place.block_rows / 2, in_block = row % place.block_rows;
  return row - in_block + 2 * (in_block % half) + in_block / half;
}
constexpr i64 row_stored_at(const Placement& place, i64 number) {
  if (!place.paired) return number;
  const i64 in_block = number % place.block_rows;
  return number - in_block + in_block % 2 * (place.block_rows / 2) + in_block / 2;
}

/// The first byte of a stored row.
constexpr i64 stored_offset(const Placement& place, i64 number) {
  return place.offset + number / place.block_rows * place.block_step + number % place.block_rows * place.row_step;
}

/// The first byte of a row.
constexpr i64 row_offset(const Placement& place, i64 row) { return stored_offset(place, stored_row(place, row)); }

/// Returns whether the elements of a row have gaps between them, so that reading a row touches all of the stored
/// matrix.
constexpr bool is_transposed(const Matrix& matrix) {
  return matrix.cols > 1 && matrix.place.col_step != matrix.element_bytes;
}

/// Calls `use` with each tensor that holds rows of the matrix, their placement there, the first of them and the one
/// behind the last.
template <typename Use>
void for_each_stored_part(const Matrix& matrix, const Use& use) {
  const i64 head = matrix.tail ? matrix.tail->first_row : matrix.rows;
  if (head > 0) use(matrix.tensor, matrix.place, i64{0}, head);
  if (head < matrix.rows) use(matrix.tail->tensor, matrix.tail->place, head, matrix.rows);
}

/// A stored tensor that holds matrices of one or all experts.
struct StoredPart {
  Axes axes = Axes::OutIn;
  /// Rows of the stored matrix of one expert: F, 2F for a fused FC1, H for FC2.
  i64 stored_rows = 0;
  /// Columns as stored, padding included.
  i64 cols = 0;
  i64 element_bytes = 1;
  /// Index of the expert within the tensor; 0 for an indexed one.
  i64 slot = 0;
  /// The rows of padding behind the rows of each expert.
  i64 padding_rows = 0;
};

/// Place of `role` in `part`. For Gate and Up of a fused FC1, `block_rows` is K (F for contiguous);
/// for everything else the matrix is the whole of its slot.
Placement place_matrix(const StoredPart& part, Role role, bool fused, i64 block_rows);

/// Gate or up of an interleaved FC1 [2F, cols] that is cut in the middle into two tensors like `half`, the
/// first with rows [0, F). K = `block_rows` divides F and is less.
struct HalvedPlaces {
  Placement first;
  /// The place of the rows from `tail_row` on, in the second tensor.
  Placement tail;
  i64 tail_row = 0;
};
HalvedPlaces place_halved(const StoredPart& half, Role role, i64 block_rows);

}  // namespace glu_ckpt
