/// The gradients of the grouped MLP on a CPU, from their definition: every one is a product of two matrices whose rows
/// are widened to fp32, by the inner products of the forward. It is the oracle of the kernels, and what computes where
/// there is no GPU.

#include <algorithm>
#include <vector>

#include "core/float_rows.hpp"
#include "core/parallel.hpp"
#include "forward/activation.hpp"
#include "forward/dot_products.hpp"
#include "kernels/mlp/check_mlp.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

/// Rows of B that a task of a product takes.
constexpr i64 kTaskRows = 16;

/// An fp32 matrix whose rows are padded with zeros to whole rounds of an inner product.
class FloatRows {
 public:
  FloatRows() = default;
  FloatRows(i64 rows, i64 cols)
      : rows_(rows), cols_(cols), step_(padded_cols(cols)), values_(static_cast<std::size_t>(rows * step_), 0.0F) {}

  i64 rows() const { return rows_; }
  i64 cols() const { return cols_; }
  i64 step() const { return step_; }
  float* row(i64 r) { return values_.data() + r * step_; }
  const float* row(i64 r) const { return values_.data() + r * step_; }
  std::span<float> values(i64 r) { return {row(r), static_cast<std::size_t>(cols_)}; }
  std::span<const float> values(i64 r) const { return {row(r), static_cast<std::size_t>(cols_)}; }

 private:
  i64 rows_ = 0, cols_ = 0, step_ = 0;
  std::vector<float> values_;
};

i64 bytes_of(Dtype dtype) { return dtype_bits(dtype) / 8; }

/// Columns from `col` on of dense rows in memory.
FloatRows widened(const std::byte* data, Dtype dtype, i64 rows, i64 step, i64 col, i64 cols) {
  FloatRows out(rows, cols);
  for (i64 r = 0; r < rows; ++r) widen_row(data + (r * step + col) * bytes_of(dtype), dtype, out.values(r));
  return out;
}

FloatRows transposed(const FloatRows& from) {
  FloatRows out(from.cols(), from.rows());
  for (i64 r = 0; r < from.rows(); ++r)
    for (i64 c = 0; c < from.cols(); ++c) out.row(c)[r] = from.row(r)[c];
  return out;
}

/// The columns of a, then those of b.
FloatRows joined(const FloatRows& a, const FloatRows& b) {
  FloatRows out(b.rows(), a.cols() + b.cols());
  for (i64 r = 0; r < b.rows(); ++r) {
    if (a.cols() > 0) std::ranges::copy(a.values(r), out.row(r));
    std::ranges::copy(b.values(r), out.row(r) + a.cols());
  }
  return out;
}

const std::byte* element_at(const StoredMatrix& matrix, i64 row, i64 col) {
  const StoredMatrix::Part& part = row < matrix.tail_row ? matrix.first : matrix.tail;
  return part.data + row_offset(part.place, row) + col * part.place.col_step;
}

/// A stored matrix; without rows where it is not there.
FloatRows loaded(const StoredMatrix& matrix) {
  if (!matrix.is_there()) return {};
  FloatRows out(matrix.rows, matrix.cols);
  for (i64 r = 0; r < matrix.rows; ++r)
    for (i64 c = 0; c < matrix.cols; ++c) out.row(r)[c] = widen_element(element_at(matrix, r, c), matrix.dtype);
  return out;
}

/// A bias as a row.
FloatRows loaded_bias(const StoredMatrix& bias) { return bias.is_there() ? transposed(loaded(bias)) : FloatRows(); }

/// The inner product of every row of a with every row of b, [rows of a, rows of b].
FloatRows product(const FloatRows& a, const FloatRows& b, int jobs) {
  FloatRows out(a.rows(), b.rows());
  if (a.rows() == 0) return out;
  const i64 tasks = (b.rows() + kTaskRows - 1) / kTaskRows;
  parallel_for(static_cast<std::size_t>(tasks), jobs, [&](std::size_t task, int) {
    const i64 first = static_cast<i64>(task) * kTaskRows;
    const i64 count = std::min(kTaskRows, b.rows() - first);
    const std::byte* rows[kTaskRows];
    for (i64 r = 0; r < count; ++r) rows[r] = reinterpret_cast<const std::byte*>(b.row(first + r));
    dot_products({.x = a.row(0),
                  .x_step = a.step(),
                  .tokens = a.rows(),
                  .w = rows,
                  .dtype = Dtype::F32,
                  .rows = count,
                  .cols = a.step(),
                  .out = out.row(0) + first,
                  .out_step = out.step()});
  });
  return out;
}

/// The inner product of row r of a with row s of b, in the same order.
float dot(const FloatRows& a, i64 r, const FloatRows& b, i64 s) {
  const auto* const row = reinterpret_cast<const std::byte*>(b.row(s));
  float sum = 0;
  dot_products({a.row(r), a.step(), 1, &row, Dtype::F32, 1, a.step(), &sum, 1});
  return sum;
}

/// The matrix that a gradient is written to.
struct GradTarget {
  const StoredMatrix* matrix = nullptr;
  bool accumulate = false;

  bool is_wanted() const { return matrix != nullptr && matrix->is_there(); }

  void store(const FloatRows& sums) const {
    const Dtype dtype = matrix->dtype;
    for (i64 r = 0; r < sums.rows(); ++r)
      for (i64 c = 0; c < sums.cols(); ++c) {
        auto* const at = const_cast<std::byte*>(element_at(*matrix, r, c));
        const float sum = accumulate ? sums.row(r)[c] + widen_element(at, dtype) : sums.row(r)[c];
        narrow_row({&sum, 1}, dtype, at);
      }
  }
};

/// The results of the activation's derivative for an expert's tokens.
struct Middle {
  /// [tokens, F]; da has no columns without a gate.
  FloatRows da, du, y;
};

/// One expert's tokens.
class ExpertBackward {
 public:
  ExpertBackward(const MlpBackward& backward, const MlpBackwardStep& step, std::size_t expert, i64 first, i64 count,
                 int jobs)
      : backward_(backward),
        mlp_(backward.mlp),
        step_(step),
        weights_(backward.mlp.experts[expert]),
        grads_(backward.grads.empty() ? nullptr : &backward.grads[expert]),
        first_(first),
        count_(count),
        width_(weights_.up.rows),
        jobs_(jobs) {}

  void run() const {
    if (count_ == 0) return clear();
    const FloatRows dout = rows_of(step_.dout, mlp_.hidden, 0, mlp_.hidden);
    const Middle middle = derive(dout);
    if (step_.dx != nullptr) store_dx(middle);
    weight_grads(middle, dout);
    bias_grads(middle, dout);
  }

 private:
  bool is_gated() const { return mlp_.activation.is_gated(); }

  FloatRows rows_of(const void* data, i64 step, i64 col, i64 cols) const {
    return widened(static_cast<const std::byte*>(data) + first_ * step * bytes_of(mlp_.compute), mlp_.compute, count_,
                   step, col, cols);
  }

  FloatRows x() const { return rows_of(step_.x, mlp_.hidden, 0, mlp_.hidden); }

  /// Zeros for an expert without tokens, or what gradients held where they are accumulated.
  void clear() const {
    for (const MlpMember member : {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down,
                                   &ExpertWeights::gate_bias, &ExpertWeights::up_bias, &ExpertWeights::down_bias}) {
      const GradTarget grad = target(member);
      if (grad.is_wanted() && !grad.accumulate) grad.store(FloatRows(grad.matrix->rows, grad.matrix->cols));
    }
  }

  GradTarget target(MlpMember member) const {
    const bool bias =
        member == &ExpertWeights::gate_bias || member == &ExpertWeights::up_bias || member == &ExpertWeights::down_bias;
    return {grads_ == nullptr ? nullptr : &(grads_->*member),
            bias ? backward_.accumulate_biases : backward_.accumulate_weights};
  }

  /// x W^T + b, rounded as the forward rounds it.
  FloatRows linear(const StoredMatrix& weight, const StoredMatrix& bias) const {
    FloatRows sums = product(x(), loaded(weight), jobs_);
    const FloatRows values = loaded_bias(bias);
    for (i64 t = 0; t < count_; ++t) {
      for (i64 f = 0; f < values.cols(); ++f) sums.row(t)[f] += values.row(0)[f];
      round_row(sums.values(t), mlp_.compute);
    }
    return sums;
  }

  Middle derive(const FloatRows& dout) const {
    const i64 z_step = is_gated() ? 2 * width_ : width_;
    const bool saved = step_.z != nullptr;
    const FloatRows u =
        saved ? rows_of(step_.z, z_step, z_step - width_, width_) : linear(weights_.up, weights_.up_bias);
    const FloatRows a = !is_gated() ? u
                        : saved     ? rows_of(step_.z, z_step, 0, width_)
                                    : linear(weights_.gate, weights_.gate_bias);
    const FloatRows g = product(dout, transposed(loaded(weights_.down)), jobs_);
    const FloatRows down_bias = loaded_bias(weights_.down_bias);
    Middle middle{FloatRows(count_, is_gated() ? width_ : 0), FloatRows(count_, width_), FloatRows(count_, width_)};
    FloatRows values(1, width_);
    for (i64 t = 0; t < count_; ++t) {
      const float p = round_to(step_.probs[first_ + t], mlp_.compute);
      for (i64 f = 0; f < width_; ++f) {
        const ActivationGrad grad = activation_grad(mlp_.activation, a.row(t)[f], u.row(t)[f]);
        const float scaled = g.row(t)[f] * p;
        values.row(0)[f] = grad.value;
        middle.y.row(t)[f] = grad.value * p;
        middle.du.row(t)[f] = scaled * grad.by_linear;
        if (is_gated()) middle.da.row(t)[f] = scaled * grad.by_gate;
      }
      for (FloatRows* const rows : {&middle.da, &middle.du, &middle.y}) round_row(rows->values(t), mlp_.compute);
      if (step_.dprobs == nullptr) continue;
      float& dp = step_.dprobs[first_ + t];
      dp = dot(g, t, values, 0);
      if (down_bias.rows() > 0) dp += dot(dout, t, down_bias, 0);
    }
    return middle;
  }

  void store_dx(const Middle& middle) const {
    const FloatRows weights =
        joined(is_gated() ? transposed(loaded(weights_.gate)) : FloatRows(), transposed(loaded(weights_.up)));
    const FloatRows dx = product(joined(middle.da, middle.du), weights, jobs_);
    auto* const out = static_cast<std::byte*>(step_.dx) + first_ * mlp_.hidden * bytes_of(mlp_.compute);
    for (i64 t = 0; t < count_; ++t)
      narrow_row(dx.values(t), mlp_.compute, out + t * mlp_.hidden * bytes_of(mlp_.compute));
  }

  void weight_grads(const Middle& middle, const FloatRows& dout) const {
    const GradTarget gate = target(&ExpertWeights::gate);
    const GradTarget up = target(&ExpertWeights::up);
    const GradTarget down = target(&ExpertWeights::down);
    if (gate.is_wanted() || up.is_wanted()) {
      const FloatRows by_column = transposed(x());
      if (gate.is_wanted()) gate.store(product(transposed(middle.da), by_column, jobs_));
      if (up.is_wanted()) up.store(product(transposed(middle.du), by_column, jobs_));
    }
    if (down.is_wanted()) down.store(product(transposed(dout), transposed(middle.y), jobs_));
  }

  void bias_grads(const Middle& middle, const FloatRows& dout) const {
    FloatRows ones(1, count_);
    std::ranges::fill(ones.values(0), 1.0F);
    FloatRows probs(1, count_);
    std::copy_n(step_.probs + first_, count_, probs.row(0));
    const auto store = [&](MlpMember member, const FloatRows& rows, const FloatRows& factors) {
      const GradTarget grad = target(member);
      if (grad.is_wanted()) grad.store(product(transposed(rows), factors, 1));
    };
    store(&ExpertWeights::gate_bias, middle.da, ones);
    store(&ExpertWeights::up_bias, middle.du, ones);
    store(&ExpertWeights::down_bias, dout, probs);
  }

  const MlpBackward& backward_;
  const GroupedMlp& mlp_;
  const MlpBackwardStep& step_;
  const ExpertWeights& weights_;
  const ExpertWeights* grads_;
  i64 first_, count_, width_;
  int jobs_;
};

}  // namespace

void grouped_mlp_backward_host(const MlpBackward& backward, const MlpBackwardStep& step, std::span<const i64> splits,
                               int jobs) {
  check_mlp_backward(backward);
  check_backward_step(
      backward.mlp.compute, step,
      step.z == nullptr || wants_grad(backward, &ExpertWeights::gate) || wants_grad(backward, &ExpertWeights::up));
  check_grouped_mlp(backward.mlp, step.rows, splits);
  i64 first = 0;
  for (std::size_t e = 0; e < splits.size(); first += splits[e++])
    ExpertBackward(backward, step, e, first, splits[e], jobs).run();
}

}  // namespace glu_ckpt
