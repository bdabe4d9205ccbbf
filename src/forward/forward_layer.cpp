/// One layer's experts on given tokens, in bounded memory: tokens are sorted by expert, experts read a few at a time.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "forward/dequantize_expert.hpp"
#include "forward/load_expert.hpp"
#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {
namespace {

void check_sizes(const RoutedTokens& tokens, i64 hidden) {
  const auto expect = [](std::string_view name, std::size_t have, i64 rows, i64 cols) {
    const auto count = checked_mul(rows, cols);
    if (rows < 0 || cols < 1 || !count || have != static_cast<std::size_t>(*count))
      fail(ErrorCode::TokensInvalid, {}, "{}: {} values, expected [{}, {}]", name, have, rows, cols);
  };
  const auto element_bytes = static_cast<std::size_t>(dtype_bits(tokens.x_dtype) / 8);
  expect("x", tokens.x.size() / element_bytes, tokens.tokens, hidden);
  expect("index", tokens.index.size(), tokens.tokens, tokens.top_k);
  expect("weights", tokens.weights.size(), tokens.tokens, tokens.top_k);
}

void check_dtype(const RoutedTokens& tokens, Dtype compute) {
  if (tokens.x_dtype == compute || (compute == Dtype::F32 && is_float(tokens.x_dtype))) return;
  fail(ErrorCode::TokensInvalid, {}, "x is {}; the weights are {}: {}", dtype_name(tokens.x_dtype), dtype_name(compute),
       compute == Dtype::F32 ? "x must be BF16, F16 or F32" : "give x in that dtype, or compute in fp32");
}

void check_values(const RoutedTokens& tokens, std::span<const float> x, i64 hidden, i64 num_experts) {
  for (std::size_t i = 0; i < x.size(); ++i)
    if (std::isnan(x[i]))
      fail(ErrorCode::TokensInvalid, {}, "x[{}, {}] is NaN", static_cast<i64>(i) / hidden,
           static_cast<i64>(i) % hidden);
  for (std::size_t i = 0; i < tokens.index.size(); ++i) {
    const i64 token = static_cast<i64>(i) / tokens.top_k;
    const i64 slot = static_cast<i64>(i) % tokens.top_k;
    if (tokens.index[i] < 0 || tokens.index[i] >= num_experts)
      fail(ErrorCode::TokensInvalid, {}, "index[{}, {}] is {}; the layer has {} experts", token, slot, tokens.index[i],
           num_experts);
    if (std::isnan(tokens.weights[i])) fail(ErrorCode::TokensInvalid, {}, "weights[{}, {}] is NaN", token, slot);
  }
}

class LayerRun {
 public:
  LayerRun(const Model& model, const ExpertBlock& block, const RoutedTokens& tokens, const LayerOptions& options)
      : source_(*model.source),
        block_(block),
        tokens_(tokens),
        options_(options),
        hidden_(block.hidden_size),
        compute_(compute_dtype(model, block, options.fp32)),
        dequantized_(block),
        experts_(stored_experts(block)) {
    check_dtype(tokens, compute_);
    check_sizes(tokens, hidden_);
    x_.resize(static_cast<std::size_t>(tokens.tokens * hidden_));
    widen_row(tokens.x.data(), tokens.x_dtype, x_);
    check_values(tokens, x_, hidden_, block.num_experts);
    sort_by_expert();
  }

  std::vector<std::byte> run() {
    std::unique_ptr<MlpRunner> own;
    runner_ = options_.runner;
    if (runner_ == nullptr) {
      own = make_mlp_runner("cpu");
      runner_ = own.get();
    }
    sums_.assign(x_.size(), 0.0F);
    for (i64 first = 0; first < block_.num_experts;) {
      const i64 last = end_of_batch(first);
      run_experts(first, last);
      first = last;
    }
    std::vector<std::byte> y(x_.size() * static_cast<std::size_t>(element_bytes()));
    narrow_row(sums_, compute_, y.data());
    return y;
  }

 private:
  const StoredExpert& expert(i64 number) const { return experts_[static_cast<std::size_t>(number)]; }
  i64 element_bytes() const { return dtype_bits(compute_) / 8; }
  i64 count(i64 expert) const {
    return first_[static_cast<std::size_t>(expert) + 1] - first_[static_cast<std::size_t>(expert)];
  }

  /// Batches are counted in bytes of values, which every layout has alike: on a GPU the order of sums depends on how
  /// many experts and rows are run together. What an expert takes in memory differs, and bounds them only where it
  /// must.
  i64 end_of_batch(i64 first) const {
    i64 last = first;
    i64 bytes = 0;
    i64 held_bytes = 0;
    for (; last < block_.num_experts; ++last) {
      if (count(last) == 0) continue;
      bytes += value_bytes(expert(last));
      held_bytes += expert(last).held_bytes;
      if (last > first && (bytes > runner_->batch_bytes(options_.jobs) || held_bytes > options_.memory_bytes)) break;
    }
    return last;
  }

  /// The bytes of an expert's weights and biases, as they are computed with.
  i64 value_bytes(const StoredExpert& stored) const {
    i64 bytes = 0;
    for (const Matrix* const matrix : stored.matrices)
      if (!is_scale(matrix->kind)) bytes += matrix->rows * matrix->cols * dtype_bits(dequantized_.dtype(*matrix)) / 8;
    return bytes;
  }

  /// order_[first_[e]] on are the places in `index` that hold e, in order.
  void sort_by_expert() {
    first_.assign(static_cast<std::size_t>(block_.num_experts) + 1, 0);
    for (const i64 expert : tokens_.index) ++first_[static_cast<std::size_t>(expert) + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    order_.resize(tokens_.index.size());
    std::iota(order_.begin(), order_.end(), i64{0});
    std::stable_sort(order_.begin(), order_.end(), [&](i64 a, i64 b) {
      return tokens_.index[static_cast<std::size_t>(a)] < tokens_.index[static_cast<std::size_t>(b)];
    });
  }

  void run_experts(i64 first, i64 last) {
    std::vector<i64> used;
    for (i64 e = first; e < last; ++e)
      if (count(e) > 0) used.push_back(e);
    std::vector<const StoredExpert*> wanted;
    for (const i64 e : used) wanted.push_back(&expert(e));
    const auto weights = load_experts(source_, wanted, buffer_, options_.jobs, options_.on_progress);
    // Rows beyond these are for another turn: what an activation takes per row is bounded, too.
    constexpr i64 kRows = 4096;
    i64 most = 0;
    for (const i64 e : used) most = std::max(most, count(e));
    for (i64 begin = 0; begin < most; begin += kRows) run_rows(used, weights, begin, begin + kRows);
  }

  /// Rows [begin, end) of each of these experts.
  void run_rows(const std::vector<i64>& used, const std::vector<ExpertWeights>& weights, i64 begin, i64 end) {
    std::vector<i64> splits;
    std::vector<i64> places;
    for (std::size_t i = 0; i < used.size(); ++i) {
      const i64 from = first_[static_cast<std::size_t>(used[i])];
      const i64 rows = std::clamp<i64>(count(used[i]) - begin, 0, end - begin);
      splits.push_back(rows);
      for (i64 r = 0; r < rows; ++r) places.push_back(order_[static_cast<std::size_t>(from + begin + r)]);
    }
    const auto rows = static_cast<i64>(places.size());
    const i64 row_bytes = hidden_ * element_bytes();
    std::vector<std::byte> x(static_cast<std::size_t>(rows * row_bytes));
    std::vector<std::byte> out(x.size());
    std::vector<float> probs;
    for (i64 r = 0; r < rows; ++r) {
      const i64 place = places[static_cast<std::size_t>(r)];
      // x has the compute dtype, or that is F32: either way exact.
      narrow_row(token_row(x_, place), compute_, x.data() + r * row_bytes);
      probs.push_back(tokens_.weights[static_cast<std::size_t>(place)]);
    }
    const GroupedMlp mlp{hidden_, compute_, options_.activation, weights};
    runner_->run(mlp, x.data(), rows, splits, probs.data(), out.data(), options_.jobs);
    std::vector<float> values(static_cast<std::size_t>(hidden_));
    for (i64 r = 0; r < rows; ++r) {
      widen_row(out.data() + r * row_bytes, compute_, values);
      const auto sum = token_row(sums_, places[static_cast<std::size_t>(r)]);
      for (std::size_t h = 0; h < sum.size(); ++h) sum[h] += values[h];
    }
  }

  /// The row of the token that has this place in `index`.
  std::span<float> token_row(std::vector<float>& rows, i64 place) const {
    return std::span(rows).subspan(static_cast<std::size_t>(place / tokens_.top_k * hidden_),
                                   static_cast<std::size_t>(hidden_));
  }

  const Source& source_;
  const ExpertBlock& block_;
  const RoutedTokens& tokens_;
  const LayerOptions& options_;
  i64 hidden_;
  Dtype compute_;
  std::vector<float> x_;
  std::vector<float> sums_;
  std::vector<i64> first_;
  std::vector<i64> order_;
  Dequantized dequantized_;
  std::vector<StoredExpert> experts_;
  MlpRunner* runner_ = nullptr;
  /// It holds the weights of one batch after the other.
  HostBuffer buffer_;
};

}  // namespace

Dtype compute_dtype(const Model& model, const ExpertBlock& block, bool fp32) {
  const Dequantized dequantized(block);
  const Matrix* first = nullptr;
  for (const Matrix& matrix : block.matrices) {
    const std::string& name = model.source->inventory().tensors[matrix.tensor].name;
    if (!is_float(dequantized.dtype(matrix)))
      fail(ErrorCode::NotSupported, {{}, name}, "'{}' is {}; only BF16, F16, F32 and MXFP8 can be computed with", name,
           dtype_name(matrix.dtype));
    if (matrix.kind != TensorKind::Weight) continue;
    if (first == nullptr) first = &matrix;
    if (!fp32 && dequantized.dtype(matrix) != dequantized.dtype(*first))
      fail(ErrorCode::NotSupported, {{}, name}, "'{}' is {}, other weights of layer {} are {}; compute in fp32", name,
           dtype_name(matrix.dtype), layer_label(block), dtype_name(first->dtype));
  }
  if (first == nullptr) fail(ErrorCode::NoExperts, {}, "layer {} has no weights", layer_label(block));
  return fp32 ? Dtype::F32 : dequantized.dtype(*first);
}

std::vector<std::byte> forward_layer(const Model& model, const ExpertBlock& block, const RoutedTokens& tokens,
                                     const LayerOptions& options) {
  return LayerRun(model, block, tokens, options).run();
}

}  // namespace glu_ckpt
