/// From two placements of one matrix to moves.

#include <algorithm>
#include <numeric>

#include "glu_ckpt/plan.hpp"

namespace glu_ckpt {
namespace {

i64 row_offset(const Placement& place, i64 row) {
  return place.offset + (row / place.block_rows) * place.block_step + (row % place.block_rows) * place.row_step;
}

/// Sorts the loops, and folds what is adjacent on both sides into longer runs and fewer loops.
void normalize(Move& move) {
  auto& dims = move.dims;
  const auto idle_last = [](const MoveDim& a, const MoveDim& b) {
    if ((a.count == 1) != (b.count == 1)) return b.count == 1;
    return a.dst_step > b.dst_step;
  };
  for (bool changed = true; changed;) {
    changed = false;
    std::stable_sort(dims.begin(), dims.end(), idle_last);
    for (MoveDim& dim : dims)
      if (dim.count > 1 && dim.src_step == move.run_bytes && dim.dst_step == move.run_bytes) {
        move.run_bytes *= dim.count;
        dim = {};
        changed = true;
      }
    for (std::size_t i = 0; i + 1 < dims.size(); ++i) {
      MoveDim& outer = dims[i];
      MoveDim& inner = dims[i + 1];
      if (inner.count == 1 || outer.src_step != inner.count * inner.src_step ||
          outer.dst_step != inner.count * inner.dst_step)
        continue;
      inner.count *= outer.count;
      outer = {};
      changed = true;
    }
  }
  for (MoveDim& dim : dims)
    if (dim.count == 1) dim = {};
}

Move base_move(const Matrix& from, const Matrix& to, i64 row) {
  Move move;
  move.src = from.tensor;
  move.dst = to.tensor;
  move.src_offset = row_offset(from.place, row);
  move.dst_offset = row_offset(to.place, row);
  move.run_bytes = from.element_bytes;
  return move;
}

/// Block sizes where the larger is a multiple of the smaller: one move with a loop per level.
Move nested_move(const Matrix& from, const Matrix& to) {
  const Placement& s = from.place;
  const Placement& d = to.place;
  const i64 small = std::min(s.block_rows, d.block_rows);
  const i64 large = std::max(s.block_rows, d.block_rows);
  Move move = base_move(from, to, 0);
  const auto outer_step = [&](const Placement& p) { return large / p.block_rows * p.block_step; };
  const auto middle_step = [&](const Placement& p) {
    return p.block_rows == small ? p.block_step : small * p.row_step;
  };
  move.dims = {{{from.rows / large, outer_step(s), outer_step(d)},
                {large / small, middle_step(s), middle_step(d)},
                {small, s.row_step, d.row_step},
                {from.cols, s.col_step, d.col_step}}};
  return move;
}

}  // namespace

std::vector<Move> matrix_moves(const Matrix& from, const Matrix& to) {
  std::vector<Move> moves;
  const Placement& s = from.place;
  const Placement& d = to.place;
  const i64 period = std::lcm(s.block_rows, d.block_rows);
  if (period == std::max(s.block_rows, d.block_rows)) {
    moves.push_back(nested_move(from, to));
  } else {
    // The blocks cut one period of rows into pieces; each piece recurs with the same steps.
    for (i64 row = 0; row < period;) {
      const i64 end = std::min(row - row % s.block_rows + s.block_rows, row - row % d.block_rows + d.block_rows);
      Move move = base_move(from, to, row);
      move.dims = {{{from.rows / period, period / s.block_rows * s.block_step, period / d.block_rows * d.block_step},
                    {end - row, s.row_step, d.row_step},
                    {from.cols, s.col_step, d.col_step},
                    {}}};
      moves.push_back(move);
      row = end;
    }
  }
  for (Move& move : moves) normalize(move);
  return moves;
}

}  // namespace glu_ckpt
