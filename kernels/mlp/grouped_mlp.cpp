#include <cmath>
#include <string>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "kernels/mlp/check_mlp.hpp"

namespace glu_ckpt {
namespace {

/// Names a matrix in messages: "expert 3, gate".
std::string matrix_text(std::size_t expert, std::string_view name) {
  return fmt::format("expert {}, {}", expert, name);
}

class ExpertChecker {
 public:
  ExpertChecker(const GroupedMlp& mlp, std::size_t number)
      : mlp_(mlp), expert_(mlp.experts[number]), number_(number), width_(expert_.up.rows) {}

  void check() const {
    if (width_ < 1) fail(ErrorCode::Usage, {}, "{}: {} rows", matrix_text(number_, "up"), width_);
    if (mlp_.activation.is_gated()) weight("gate", expert_.gate, width_, mlp_.hidden);
    if (!mlp_.activation.is_gated() && (expert_.gate.is_there() || expert_.gate_bias.is_there()))
      fail(ErrorCode::Usage, {}, "{}: {} takes no gate", matrix_text(number_, "gate"), to_string(mlp_.activation.kind));
    weight("up", expert_.up, width_, mlp_.hidden);
    weight("down", expert_.down, mlp_.hidden, width_);
    bias("gate bias", expert_.gate_bias, width_);
    bias("up bias", expert_.up_bias, width_);
    bias("down bias", expert_.down_bias, mlp_.hidden);
  }

 private:
  void weight(std::string_view name, const StoredMatrix& matrix, i64 rows, i64 cols) const {
    if (!matrix.is_there()) fail(ErrorCode::Usage, {}, "{}: not there", matrix_text(number_, name));
    stored(name, matrix, rows, cols);
    if (mlp_.compute != Dtype::F32 && matrix.dtype != mlp_.compute)
      fail(ErrorCode::NotSupported, {}, "{}: {}, but the computation is in {}; F32 takes weights of any dtype",
           matrix_text(number_, name), dtype_name(matrix.dtype), dtype_name(mlp_.compute));
  }

  void bias(std::string_view name, const StoredMatrix& matrix, i64 rows) const {
    if (matrix.is_there()) stored(name, matrix, rows, 1);
  }

  void stored(std::string_view name, const StoredMatrix& matrix, i64 rows, i64 cols) const {
    if (matrix.rows != rows || matrix.cols != cols)
      fail(ErrorCode::Usage, {}, "{}: [{}, {}], expected [{}, {}]", matrix_text(number_, name), matrix.rows,
           matrix.cols, rows, cols);
    if (!is_float(matrix.dtype))
      fail(ErrorCode::NotSupported, {}, "{}: {}; only BF16, F16 and F32 can be computed with",
           matrix_text(number_, name), dtype_name(matrix.dtype));
    if (matrix.tail_row < 0 || matrix.tail_row > matrix.rows || !part_is_there(matrix.first, matrix.tail_row) ||
        !part_is_there(matrix.tail, matrix.rows - matrix.tail_row))
      fail(ErrorCode::Usage, {}, "{}: {} rows whose tail begins at {}{}", matrix_text(number_, name), matrix.rows,
           matrix.tail_row, matrix.first.data == nullptr ? ", and no first rows" : "");
    if (matrix.tail_row > 0) blocks(name, matrix, matrix.first.place.block_rows);
    if (matrix.tail_row < matrix.rows) blocks(name, matrix, matrix.tail.place.block_rows);
  }

  static bool part_is_there(const StoredMatrix::Part& part, i64 rows) { return rows == 0 || part.data != nullptr; }

  /// One block may be longer than the matrix.
  void blocks(std::string_view name, const StoredMatrix& matrix, i64 block_rows) const {
    if (block_rows < 1 || (block_rows < matrix.rows && matrix.rows % block_rows != 0))
      fail(ErrorCode::Usage, {}, "{}: {} rows in blocks of {}; the block must divide the rows",
           matrix_text(number_, name), matrix.rows, block_rows);
  }

  const GroupedMlp& mlp_;
  const ExpertWeights& expert_;
  std::size_t number_;
  i64 width_;
};

void check_activation(const Activation& activation) {
  const bool clamped =
      activation.kind == ActivationKind::ClampedSwiglu || activation.kind == ActivationKind::ClampedQuickGeglu;
  if (!std::isfinite(activation.alpha) || !std::isfinite(activation.offset))
    fail(ErrorCode::Usage, {}, "{}: alpha {} and offset {} must be finite", to_string(activation.kind),
         activation.alpha, activation.offset);
  const bool smooth = activation.kind == ActivationKind::SituGlu;
  if (smooth && !(activation.alpha > 0))
    fail(ErrorCode::Usage, {}, "{}: alpha {}, the gate's bound, must be more than 0", to_string(activation.kind),
         activation.alpha);
  if ((clamped || smooth) && !(std::isfinite(activation.limit) && activation.limit > 0))
    fail(ErrorCode::Usage, {}, "{}: the limit {} must be finite and more than 0", to_string(activation.kind),
         activation.limit);
}

void check_splits(std::size_t num_experts, i64 rows, std::span<const i64> splits) {
  if (splits.size() != num_experts) fail(ErrorCode::Usage, {}, "{} splits for {} experts", splits.size(), num_experts);
  i64 sum = 0;
  for (std::size_t e = 0; e < splits.size(); ++e) {
    if (splits[e] < 0) fail(ErrorCode::Usage, {}, "split {} is {}", e, splits[e]);
    const auto next = checked_add(sum, splits[e]);
    if (!next || *next > rows)
      fail(ErrorCode::Usage, {}, "splits up to number {} take {} + {} rows; there are {}", e, sum, splits[e], rows);
    sum = *next;
  }
}

}  // namespace

void check_mlp(const GroupedMlp& mlp) {
  if (mlp.hidden < 1) fail(ErrorCode::Usage, {}, "rows of x have {} values", mlp.hidden);
  if (!is_float(mlp.compute))
    fail(ErrorCode::NotSupported, {}, "compute dtype {}; only BF16, F16 and F32 can be computed with",
         dtype_name(mlp.compute));
  check_activation(mlp.activation);
  for (std::size_t e = 0; e < mlp.experts.size(); ++e) ExpertChecker(mlp, e).check();
}

void check_grouped_mlp(const GroupedMlp& mlp, i64 rows, std::span<const i64> splits) {
  if (rows < 0) fail(ErrorCode::Usage, {}, "x is [{}, {}]", rows, mlp.hidden);
  check_mlp(mlp);
  check_splits(mlp.experts.size(), rows, splits);
}

i64 check_one_width(const GroupedMlp& mlp) {
  if (mlp.experts.empty()) fail(ErrorCode::Usage, {}, "no experts");
  const i64 width = mlp.experts[0].up.rows;
  for (std::size_t e = 1; e < mlp.experts.size(); ++e)
    if (mlp.experts[e].up.rows != width)
      fail(ErrorCode::NotSupported, {}, "expert {} has a width of {}, expert 0 of {}; here they must be equal", e,
           mlp.experts[e].up.rows, width);
  return width;
}

}  // namespace glu_ckpt
