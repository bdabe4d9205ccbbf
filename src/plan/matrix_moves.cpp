#include "plan/matrix_moves.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include "core/fail.hpp"
#include "layout/placement.hpp"
#include "plan/join_moves.hpp"

namespace glu_ckpt {
namespace {

/// Rows [first, last) of a matrix in one tensor.
struct RowsIn {
  std::size_t tensor = 0;
  Placement place;
  i64 first = 0;
  i64 last = 0;
};

/// The parts of one matrix, in the order of its rows; at most three, and no memory of their own.
class RowParts {
 public:
  void add(const RowsIn& part) { parts_[count_++] = part; }
  std::span<const RowsIn> used() const { return std::span(parts_).first(count_); }

 private:
  std::array<RowsIn, 3> parts_{};
  std::size_t count_ = 0;
};

/// An odd number of blocks has one in the middle. Cut off from the others, it leaves gate and up as many blocks in
/// each tensor, which the proof of a plan needs to pair them.
RowParts tensors_of(const Matrix& matrix) {
  RowParts parts;
  if (!matrix.tail) {
    parts.add({matrix.tensor, matrix.place, 0, matrix.rows});
    return parts;
  }
  const MatrixTail& tail = *matrix.tail;
  const auto add = [&](i64 first, i64 last) {
    const bool head = first < tail.first_row;
    parts.add({head ? matrix.tensor : tail.tensor, head ? matrix.place : tail.place, first, last});
  };
  const i64 middle = (matrix.rows - matrix.place.block_rows) / 2;
  const bool longer_head = 2 * tail.first_row > matrix.rows, longer_tail = 2 * tail.first_row < matrix.rows;
  if (longer_head) add(0, middle);
  add(longer_head ? middle : 0, tail.first_row);
  const i64 rest = longer_tail ? middle + matrix.place.block_rows : tail.first_row;
  if (longer_tail) add(tail.first_row, rest);
  add(rest, matrix.rows);
  return parts;
}

/// The moves of some rows from one tensor to one other.
class RowMoves {
 public:
  /// `single`: each piece of a period a move of its own.
  RowMoves(const RowsIn& from, const RowsIn& to, const Matrix& matrix, bool single, std::vector<Move>& moves)
      : from_(from), to_(to), s_(from.place), d_(to.place), matrix_(matrix), single_(single), moves_(moves) {}

  void add(i64 first, i64 last) {
    const i64 period = std::lcm(s_.block_rows, d_.block_rows);
    const bool nested = period == std::max(s_.block_rows, d_.block_rows);
    // A part of a period at either end, whole ones between.
    const i64 head = std::min(last, (first + period - 1) / period * period);
    const i64 body = std::max(head, last / period * period);
    for (const auto& [begin, end] : {std::pair{first, head}, {head, body}, {body, last}}) {
      if (begin == end) continue;
      const bool whole = begin == head && end == body;
      if (nested)
        add_nested(begin, end, whole ? period : end - begin);
      else if (single_)
        add_pieces(begin, end, 1, period);
      else
        add_pieces(begin, whole ? begin + period : end, whole ? (end - begin) / period : 1, period);
    }
  }

 private:
  Move base_move(i64 row) const {
    Move move;
    move.src = from_.tensor;
    move.dst = to_.tensor;
    move.src_offset = row_offset(s_, row);
    move.dst_offset = row_offset(d_, row);
    move.run_bytes = matrix_.element_bytes;
    return move;
  }

  /// Block sizes where the larger is a multiple of the smaller: one move with a loop per level. Rows
  /// [begin, end) are groups of `group` rows, each within one of the larger blocks.
  void add_nested(i64 begin, i64 end, i64 group) {
    const i64 small = std::min(s_.block_rows, d_.block_rows);
    const i64 large = std::max(s_.block_rows, d_.block_rows);
    const auto outer_step = [&](const Placement& p) { return large / p.block_rows * p.block_step; };
    const auto middle_step = [&](const Placement& p) {
      return p.block_rows == small ? p.block_step : small * p.row_step;
    };
    Move move = base_move(begin);
    move.dims = {{{(end - begin) / group, outer_step(s_), outer_step(d_)},
                  {group / small, middle_step(s_), middle_step(d_)},
                  {small, s_.row_step, d_.row_step},
                  {matrix_.cols, s_.col_step, d_.col_step}}};
    moves_.push_back(move);
  }

  /// The blocks cut rows [begin, end) into pieces; each recurs `count` times, a period apart.
  void add_pieces(i64 begin, i64 end, i64 count, i64 period) {
    for (i64 row = begin; row < end;) {
      const i64 next =
          std::min({end, row - row % s_.block_rows + s_.block_rows, row - row % d_.block_rows + d_.block_rows});
      Move move = base_move(row);
      move.dims = {{{count, period / s_.block_rows * s_.block_step, period / d_.block_rows * d_.block_step},
                    {next - row, s_.row_step, d_.row_step},
                    {matrix_.cols, s_.col_step, d_.col_step},
                    {}}};
      moves_.push_back(move);
      row = next;
    }
  }

  const RowsIn& from_;
  const RowsIn& to_;
  const Placement& s_;
  const Placement& d_;
  const Matrix& matrix_;
  bool single_;
  std::vector<Move>& moves_;
};

/// The moves between a place whose blocks are paired and one whose are not: one for each half of all blocks.
void append_halves(const Matrix& from, const Matrix& to, std::vector<Move>& moves) {
  const Placement& paired = from.place.paired ? from.place : to.place;
  const Placement& plain = from.place.paired ? to.place : from.place;
  const i64 head = paired.block_rows, half = head / 2;
  if (head % 2 != 0 || plain.block_rows % head != 0)
    fail(ErrorCode::NotExact, {}, "heads of {} rows do not fit into blocks of {}, or have no halves", head,
         plain.block_rows);
  const i64 heads = plain.block_rows / head;
  const auto dim = [&](i64 count, i64 of_paired, i64 of_plain) {
    return from.place.paired ? MoveDim{count, of_paired, of_plain} : MoveDim{count, of_plain, of_paired};
  };
  for (const i64 second : {0, 1}) {
    const i64 in_paired = paired.offset + second * paired.row_step;
    const i64 in_plain = plain.offset + second * half * plain.row_step;
    Move move;
    move.src = from.tensor;
    move.dst = to.tensor;
    move.src_offset = from.place.paired ? in_paired : in_plain;
    move.dst_offset = from.place.paired ? in_plain : in_paired;
    move.run_bytes = from.element_bytes;
    move.dims = {{dim(from.rows / plain.block_rows, heads * paired.block_step, plain.block_step),
                  dim(heads, paired.block_step, head * plain.row_step), dim(half, 2 * paired.row_step, plain.row_step),
                  dim(from.cols, paired.col_step, plain.col_step)}};
    moves.push_back(move);
  }
}

}  // namespace

void append_matrix_moves(const Matrix& from, const Matrix& to, std::vector<Move>& moves) {
  const std::size_t before = moves.size();
  if (from.place.paired != to.place.paired) {
    append_halves(from, to, moves);
    for (Move& move : std::span(moves).subspan(before)) fold_loops(move);
    return;
  }
  const bool single = from.tail != nullptr || to.tail != nullptr;
  const RowParts sources = tensors_of(from), targets = tensors_of(to);
  for (const RowsIn& source : sources.used())
    for (const RowsIn& target : targets.used()) {
      const i64 first = std::max(source.first, target.first);
      const i64 last = std::min(source.last, target.last);
      if (first < last) RowMoves(source, target, from, single, moves).add(first, last);
    }
  for (Move& move : std::span(moves).subspan(before)) fold_loops(move);
}

std::vector<Move> matrix_moves(const Matrix& from, const Matrix& to) {
  std::vector<Move> moves;
  append_matrix_moves(from, to, moves);
  return moves;
}

}  // namespace glu_ckpt
