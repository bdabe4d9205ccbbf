#include "verify/wrong_layout.hpp"

#include <algorithm>

namespace glu_ckpt {
namespace {

/// Returns whether gate and up alternate in one tensor, in blocks; contiguous is one block each.
bool is_fused(const StoredMatrix& gate, const StoredMatrix& up) {
  const Placement& place = gate.first.place;
  return gate.first.data != nullptr && gate.first.data == up.first.data && gate.tail_row == gate.rows &&
         up.tail_row == up.rows && place.block_step == 2 * place.block_rows * place.row_step;
}

/// 0 where there is no other block size.
i64 other_block_rows(i64 block_rows, i64 width) {
  constexpr i64 kUsual = 32;
  if (block_rows < width) return width;
  if (kUsual < width && width % kUsual == 0) return kUsual;
  for (i64 rows = width / 2; rows > 0; --rows)
    if (width % rows == 0) return rows;
  return 0;
}

void take_blocks(StoredMatrix& gate, StoredMatrix& up, i64 block_rows) {
  Placement place = gate.first.place;
  place.block_rows = block_rows;
  place.block_step = 2 * block_rows * place.row_step;
  gate.first.place = place;
  place.offset += block_rows * place.row_step;
  up.first.place = place;
}

/// Row r is read where r + 1 stands, the last where row 0 does. Only for a matrix of one part and one block.
void shift_rows(StoredMatrix& matrix) {
  matrix.tail = matrix.first;
  matrix.tail_row = matrix.rows - 1;
  matrix.tail.place.offset -= matrix.tail_row * matrix.tail.place.row_step;
  matrix.first.place.offset += matrix.first.place.row_step;
}

}  // namespace

std::vector<ExpertWeights> wrong_layouts(const ExpertWeights& expert) {
  std::vector<ExpertWeights> layouts;
  if (!expert.gate.is_there()) {
    ExpertWeights shifted = expert;
    if (expert.up.rows > 1) {
      shift_rows(shifted.up);
      if (expert.up_bias.is_there()) shift_rows(shifted.up_bias);
      layouts.push_back(shifted);
    } else if (expert.down.rows > 1) {
      shift_rows(shifted.down);
      layouts.push_back(shifted);
    }
    return layouts;
  }
  if (is_fused(expert.gate, expert.up)) {
    const i64 rows = other_block_rows(expert.gate.first.place.block_rows, expert.gate.rows);
    ExpertWeights reordered = expert;
    if (rows > 0) {
      take_blocks(reordered.gate, reordered.up, rows);
      if (is_fused(expert.gate_bias, expert.up_bias)) take_blocks(reordered.gate_bias, reordered.up_bias, rows);
      layouts.push_back(reordered);
    }
  }
  ExpertWeights exchanged = expert;
  std::swap(exchanged.gate, exchanged.up);
  std::swap(exchanged.gate_bias, exchanged.up_bias);
  layouts.push_back(exchanged);
  return layouts;
}

}  // namespace glu_ckpt
