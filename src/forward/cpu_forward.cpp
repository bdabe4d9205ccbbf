/// The grouped MLP on a CPU. Two passes, FC1 with the activation and FC2, each over blocks of an expert's rows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "core/parallel.hpp"
#include "exec/host_buffer.hpp"
#include "forward/activation.hpp"
#include "forward/dot_products.hpp"
#include "kernels/mlp/check_mlp.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

/// Rows of a weight that are taken together: 128 KiB of bf16 at 4096 columns, which stays in L2.
constexpr i64 kBlockRows = 16;

const std::byte* row_data(const StoredMatrix& matrix, i64 row) {
  const StoredMatrix::Part& part = row < matrix.tail_row ? matrix.first : matrix.tail;
  return part.data + row_offset(part.place, row);
}

i64 col_step(const StoredMatrix& matrix, i64 row) {
  return (row < matrix.tail_row ? matrix.first : matrix.tail).place.col_step;
}

/// Takes the rows of a column together, for they are neighbours in a transposed matrix.
template <typename Element>
void gather_columns(const std::byte* const* rows, i64 count, i64 cols, i64 col_step_bytes, i64 row_bytes,
                    std::byte* out) {
  for (i64 c = 0; c < cols; ++c)
    for (i64 r = 0; r < count; ++r)
      std::memcpy(out + r * row_bytes + c * static_cast<i64>(sizeof(Element)), rows[r] + c * col_step_bytes,
                  sizeof(Element));
}

/// Returns where rows [first, first + count) begin: in the matrix itself, or gathered in `buffer`. Each has `padded`
/// elements, and those past the matrix's columns are 0. Either way they are elements of its dtype: every layout then
/// goes through the same instructions, which matters where two NaNs meet.
void find_rows(const StoredMatrix& matrix, i64 first, i64 count, i64 padded, HostBuffer& buffer,
               const std::byte** rows) {
  const i64 element_bytes = dtype_bits(matrix.dtype) / 8;
  for (i64 r = 0; r < count; ++r) rows[r] = row_data(matrix, first + r);
  const i64 step = col_step(matrix, first);
  if (step == element_bytes && padded == matrix.cols) return;
  const i64 row_bytes = padded * element_bytes;
  buffer.reserve(count * row_bytes);
  for (i64 r = 0; r < count; ++r)
    std::memset(buffer.data() + r * row_bytes + matrix.cols * element_bytes, 0,
                static_cast<std::size_t>((padded - matrix.cols) * element_bytes));
  if (step == element_bytes)
    for (i64 r = 0; r < count; ++r)
      std::memcpy(buffer.data() + r * row_bytes, rows[r], static_cast<std::size_t>(matrix.cols * element_bytes));
  else if (element_bytes == 2)
    gather_columns<std::uint16_t>(rows, count, matrix.cols, step, row_bytes, buffer.data());
  else
    gather_columns<std::uint32_t>(rows, count, matrix.cols, step, row_bytes, buffer.data());
  for (i64 r = 0; r < count; ++r) rows[r] = buffer.data() + r * row_bytes;
}

float bias_at(const StoredMatrix& bias, i64 row) {
  return bias.is_there() ? widen_element(row_data(bias, row), bias.dtype) : 0.0F;
}

/// Rows of one expert's weight, and its rows of x.
struct Task {
  const ExpertWeights* expert = nullptr;
  i64 first_token = 0;
  i64 tokens = 0;
  i64 first_row = 0;
  i64 rows = 0;
};

/// One worker's buffers.
struct Workspace {
  /// Weights that do not lie in rows.
  HostBuffer gathered;
  std::vector<float> gate;
  std::vector<float> up;
};

void grow(std::vector<float>& buffer, i64 size) {
  if (static_cast<i64>(buffer.size()) < size) buffer.resize(static_cast<std::size_t>(size));
}

class HostMlp {
 public:
  HostMlp(const GroupedMlp& mlp, std::span<const i64> splits, const float* probs, std::byte* z)
      : mlp_(mlp), splits_(splits), probs_(probs), z_(z), hidden_(padded_cols(mlp.hidden)) {
    for (const i64 split : splits) tokens_ += split;
    for (const ExpertWeights& expert : mlp.experts) width_ = std::max(width_, padded_cols(expert.up.rows));
    round_probs();
  }

  void run(const std::byte* x, std::byte* out, int jobs) {
    widen_x(x);
    middle_.assign(buffer_size(width_), 0.0F);
    std::vector<Workspace> spaces(static_cast<std::size_t>(std::max(1, jobs)));
    const auto pass = [&](const std::vector<Task>& tasks, auto&& step) {
      parallel_for(tasks.size(), jobs,
                   [&](std::size_t i, int worker) { step(tasks[i], spaces[static_cast<std::size_t>(worker)]); });
    };
    pass(tasks([](const ExpertWeights& expert) { return expert.up.rows; }),
         [&](const Task& task, Workspace& space) { first_linear(task, space); });
    pass(tasks([](const ExpertWeights& expert) { return expert.down.rows; }),
         [&](const Task& task, Workspace& space) { second_linear(task, space, out); });
  }

 private:
  std::size_t buffer_size(i64 cols) const {
    const auto size = checked_mul(tokens_, cols);
    if (!size || !checked_mul(*size, sizeof(float)))
      fail(ErrorCode::ShapeOverflow, {}, "{} tokens of {} values: too many", tokens_, cols);
    return static_cast<std::size_t>(*size);
  }

  void round_probs() {
    rounded_probs_.reserve(static_cast<std::size_t>(tokens_));
    for (i64 t = 0; t < tokens_; ++t) rounded_probs_.push_back(round_to(probs_[t], mlp_.compute));
  }

  void widen_x(const std::byte* x) {
    const i64 row_bytes = mlp_.hidden * dtype_bits(mlp_.compute) / 8;
    x_.assign(buffer_size(hidden_), 0.0F);
    for (i64 t = 0; t < tokens_; ++t)
      widen_row(x + t * row_bytes, mlp_.compute, {x_.data() + t * hidden_, static_cast<std::size_t>(mlp_.hidden)});
  }

  template <typename Rows>
  std::vector<Task> tasks(const Rows& rows_of) const {
    std::vector<Task> tasks;
    i64 first_token = 0;
    for (std::size_t e = 0; e < splits_.size(); first_token += splits_[e++]) {
      const ExpertWeights& expert = mlp_.experts[e];
      const i64 rows = rows_of(expert);
      for (i64 r = 0; r < rows && splits_[e] > 0; r += kBlockRows)
        tasks.push_back({&expert, first_token, splits_[e], r, std::min(kBlockRows, rows - r)});
    }
    return tasks;
  }

  /// sums[t * kBlockRows + r]: the task's tokens times its rows of `matrix`.
  static void multiply(const Task& task, const StoredMatrix& matrix, const float* x, i64 x_step, Workspace& space,
                       std::vector<float>& sums) {
    const i64 cols = padded_cols(matrix.cols);
    grow(sums, task.tokens * kBlockRows);
    const std::byte* rows[kBlockRows];
    find_rows(matrix, task.first_row, task.rows, cols, space.gathered, rows);
    dot_products({.x = x + task.first_token * x_step,
                  .x_step = x_step,
                  .tokens = task.tokens,
                  .w = rows,
                  .dtype = matrix.dtype,
                  .rows = task.rows,
                  .cols = cols,
                  .out = sums.data(),
                  .out_step = kBlockRows});
  }

  void first_linear(const Task& task, Workspace& space) {
    const ExpertWeights& expert = *task.expert;
    const bool gated = mlp_.activation.is_gated();
    if (gated) multiply(task, expert.gate, x_.data(), hidden_, space, space.gate);
    multiply(task, expert.up, x_.data(), hidden_, space, space.up);
    float gate_bias[kBlockRows];
    float up_bias[kBlockRows];
    for (i64 r = 0; r < task.rows; ++r) {
      gate_bias[r] = bias_at(expert.gate_bias, task.first_row + r);
      up_bias[r] = bias_at(expert.up_bias, task.first_row + r);
    }
    const auto rows = static_cast<std::size_t>(task.rows);
    for (i64 t = 0; t < task.tokens; ++t) {
      const std::span<float> a(gated ? space.gate.data() + t * kBlockRows : nullptr, gated ? rows : 0);
      const std::span<float> u(space.up.data() + t * kBlockRows, rows);
      round_sums(a, expert.gate_bias, gate_bias);
      round_sums(u, expert.up_bias, up_bias);
      const i64 token = task.first_token + t;
      save_z(token, task.first_row, expert.up.rows, a, u);
      activate_row(mlp_.activation, a, u, rounded_probs_[static_cast<std::size_t>(token)], mlp_.compute,
                   {middle_.data() + token * width_ + task.first_row, rows});
    }
  }

  /// Columns from `col` on of F, of a token's gate and up.
  void save_z(i64 token, i64 col, i64 width, std::span<const float> a, std::span<const float> u) const {
    if (z_ == nullptr) return;
    const i64 element_bytes = dtype_bits(mlp_.compute) / 8;
    const i64 halves = mlp_.activation.is_gated() ? 2 : 1;
    std::byte* const row = z_ + (token * halves * width + col) * element_bytes;
    if (!a.empty()) narrow_row(a, mlp_.compute, row);
    narrow_row(u, mlp_.compute, row + (halves - 1) * width * element_bytes);
  }

  /// Without a bias not even 0 is added: it would turn -0 into 0.
  void round_sums(std::span<float> sums, const StoredMatrix& bias, const float* values) const {
    if (bias.is_there())
      for (std::size_t r = 0; r < sums.size(); ++r) sums[r] += values[r];
    round_row(sums, mlp_.compute);
  }

  void second_linear(const Task& task, Workspace& space, std::byte* out) const {
    const StoredMatrix& bias = task.expert->down_bias;
    multiply(task, task.expert->down, middle_.data(), width_, space, space.up);
    if (bias.is_there())
      for (i64 r = 0; r < task.rows; ++r)
        for (i64 t = 0; t < task.tokens; ++t) {
          float& sum = space.up[static_cast<std::size_t>(t * kBlockRows + r)];
          sum = std::fma(bias_at(bias, task.first_row + r), probs_[task.first_token + t], sum);
        }
    const i64 element_bytes = dtype_bits(mlp_.compute) / 8;
    for (i64 t = 0; t < task.tokens; ++t)
      narrow_row({space.up.data() + t * kBlockRows, static_cast<std::size_t>(task.rows)}, mlp_.compute,
                 out + ((task.first_token + t) * mlp_.hidden + task.first_row) * element_bytes);
  }

  const GroupedMlp& mlp_;
  std::span<const i64> splits_;
  const float* probs_;
  std::byte* z_;
  i64 tokens_ = 0;
  /// Values per row of x_ and of middle_, padded.
  i64 hidden_ = 0;
  i64 width_ = 0;
  std::vector<float> rounded_probs_;
  std::vector<float> x_;
  /// The input of FC2.
  std::vector<float> middle_;
};

}  // namespace

void grouped_mlp_host(const GroupedMlp& mlp, const void* x, i64 rows, std::span<const i64> splits, const float* probs,
                      void* out, int jobs, void* z) {
  check_grouped_mlp(mlp, rows, splits);
  if (z != nullptr) check_one_width(mlp);
  HostMlp(mlp, splits, probs, static_cast<std::byte*>(z))
      .run(static_cast<const std::byte*>(x), static_cast<std::byte*>(out), jobs);
}

}  // namespace glu_ckpt
