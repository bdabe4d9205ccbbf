/// `glu-ckpt bench forward` on a GPU.

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <utility>

#include "bench/bench.hpp"
#include "bench/event_timer.hpp"
#include "bench/forward_shapes.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "glu_ckpt/ops/grouped_linear.hpp"
#include "glu_ckpt/ops/grouped_mlp_backward.hpp"
#include "glu_ckpt/ops/tensor_diff.hpp"
#include "kernels/bench/measure_kernels.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kDense = 8192;
/// A figure takes about this long, if three rounds do not take longer.
constexpr double kMostMicroseconds = 2e6;
/// The bound of the largest difference to cuBLAS, in units of the rms. Both round z, the activation and the sum to 8
/// bits, which puts single values some hundredths of the rms apart; a wrong row or expert puts them several rms apart.
constexpr double kMostDifference = 0.25;
/// Values that the rms is estimated from.
constexpr i64 kSampleValues = i64{1} << 20;

DeviceBuffer random_buffer(i64 count, double deviation, u32 seed, cudaStream_t stream) {
  DeviceBuffer buffer(count * kBf16);
  random_fill_bf16(buffer.data(), count, static_cast<float>(deviation), seed, stream);
  return buffer;
}

template <typename T>
DeviceBuffer uploaded(const std::vector<T>& values) {
  DeviceBuffer buffer(std::ssize(values) * static_cast<i64>(sizeof(T)));
  CUDA_CHECK(
      cudaMemcpy(buffer.data(), values.data(), static_cast<std::size_t>(buffer.bytes()), cudaMemcpyHostToDevice));
  return buffer;
}

std::vector<float> random_probs(i64 rows) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0.05F, 1.0F);
  std::vector<float> probs(static_cast<std::size_t>(rows));
  for (float& p : probs) p = uniform(random);
  return probs;
}

/// y_i = x_i W_i^T, bf16, of weights [E, out, in].
GroupedLinearHostSplits cublas_linear(i64 experts, i64 in, i64 out, const std::byte* weights, cudaStream_t stream) {
  GroupedLinear linear;
  linear.num_experts = experts;
  linear.in_features = in;
  linear.out_features = out;
  linear.weights = {{}, weights, in * out * kBf16};
  return {linear, LinearEngine::Cublas, stream};
}

/// Three matrices [8192, 8192]: the product that shows how fast the device computes.
class DenseProduct {
 public:
  explicit DenseProduct(cudaStream_t stream)
      : a_(random_buffer(kDense * kDense, 1, 5, stream)),
        b_(random_buffer(kDense * kDense, 1 / std::sqrt(1.0 * kDense), 6, stream)),
        c_(kDense * kDense * kBf16),
        linear_(cublas_linear(1, kDense, kDense, b_.data(), stream)) {}

  void run(cudaStream_t stream) const {
    const i64 rows = kDense;
    linear_.run({rows, a_.data(), nullptr, c_.data()}, std::span(&rows, 1), stream);
  }

  static constexpr i64 kBytes = 3 * kDense * kDense * kBf16;

 private:
  DeviceBuffer a_, b_, c_;
  GroupedLinearHostSplits linear_;
};

/// Everything that one figure is made of, in device memory.
class Cell {
 public:
  Cell(const ForwardShape& shape, i64 tokens, bool with_cublas, cudaStream_t stream)
      : shape_(shape),
        rows_(shape.experts * tokens),
        splits_(static_cast<std::size_t>(shape.experts), tokens),
        fc1_(random_buffer(2 * matrix_values(), 1 / std::sqrt(1.0 * static_cast<double>(shape.hidden)), 1, stream)),
        fc2_(random_buffer(matrix_values(), 1 / std::sqrt(1.0 * static_cast<double>(shape.width)), 2, stream)),
        x_(random_buffer(rows_ * shape.hidden, 1, 3, stream)),
        out_(rows_ * shape.hidden * kBf16),
        device_splits_(uploaded(splits_)),
        probs_(uploaded(random_probs(rows_))),
        sums_(uploaded(std::vector<u32>(kReadSums))),
        experts_(grouped_experts(shape, fc1_.data(), fc2_.data())),
        mlp_({shape.hidden, Dtype::BF16, {}, experts_}, rows_, stream) {
    // The stream does not wait for what was uploaded without one.
    CUDA_CHECK(cudaDeviceSynchronize());
    if (!with_cublas) return;
    between_ = DeviceBuffer(2 * rows_ * shape.width * kBf16);
    activated_ = DeviceBuffer(rows_ * shape.width * kBf16);
    other_out_ = DeviceBuffer(out_.bytes());
    first_.emplace(cublas_linear(shape.experts, shape.hidden, 2 * shape.width, fc1_.data(), stream));
    second_.emplace(cublas_linear(shape.experts, shape.width, shape.hidden, fc2_.data(), stream));
  }

  /// The bytes of all buffers, those within DeviceGroupedMlp included.
  static i64 bytes_per_expert(const ForwardShape& shape, i64 tokens) {
    return 6 * shape.hidden * shape.width + tokens * kBf16 * (3 * shape.hidden + 4 * shape.width) +
           tokens * static_cast<i64>(sizeof(float));
  }

  void run(cudaStream_t stream) const {
    mlp_.run(x_.data(), rows_, reinterpret_cast<const i64*>(device_splits_.data()), probs(), out_.data(), stream);
  }

  void run_cublas(cudaStream_t stream) const {
    first_->run({rows_, x_.data(), nullptr, between_.data()}, splits_, stream);
    plain_swiglu(between_.data(), probs(), rows_, shape_.width, kBenchBlockRows, activated_.data(), stream);
    second_->run({rows_, activated_.data(), nullptr, other_out_.data()}, splits_, stream);
  }

  void read(cudaStream_t stream) const {
    plain_read(fc1_.data(), fc1_.bytes(), reinterpret_cast<u32*>(sums_.data()), stream);
    plain_read(fc2_.data(), fc2_.bytes(), reinterpret_cast<u32*>(sums_.data()), stream);
  }

  /// Returns the difference in units of the rms. Throws VerifyFailed where it is more than rounding.
  double difference(cudaStream_t stream) const {
    const DiffStats stats = diff_stats(out_.data(), other_out_.data(), rows_ * shape_.hidden, Dtype::BF16, stream);
    const double difference = stats.max_abs / rms();
    if (!(difference <= kMostDifference) || stats.nan_in_one + stats.nan_in_both > 0)
      fail(
          ErrorCode::VerifyFailed, {},
          "bench forward: {}, {} rows: the grouped MLP and cuBLAS differ by up to {:.3g} of the rms {:.3g} (at most {} "
          "is rounding); {} and {} NaNs in one and in both",
          shape_.model, rows_, difference, rms(), kMostDifference, stats.nan_in_one, stats.nan_in_both);
    return difference;
  }

 private:
  i64 matrix_values() const { return shape_.experts * shape_.hidden * shape_.width; }
  const float* probs() const { return reinterpret_cast<const float*>(probs_.data()); }

  double rms() const {
    const i64 count = std::min(kSampleValues, rows_ * shape_.hidden);
    std::vector<std::byte> bytes(static_cast<std::size_t>(count * kBf16));
    CUDA_CHECK(cudaMemcpy(bytes.data(), out_.data(), bytes.size(), cudaMemcpyDeviceToHost));
    std::vector<float> values(static_cast<std::size_t>(count));
    widen_row(bytes.data(), Dtype::BF16, values);
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(sum / static_cast<double>(count));
  }

  ForwardShape shape_;
  i64 rows_;
  std::vector<i64> splits_;
  DeviceBuffer fc1_, fc2_, x_, out_;
  DeviceBuffer device_splits_, probs_, sums_;
  std::vector<ExpertWeights> experts_;
  DeviceGroupedMlp mlp_;
  /// The results of cuBLAS: [rows, 2F], [rows, F] and [rows, H].
  DeviceBuffer between_, activated_, other_out_;
  std::optional<GroupedLinearHostSplits> first_, second_;
};

/// The backward of one figure: all gradients, bf16, overwritten, interleaved as the weights.
class BackwardCell {
 public:
  BackwardCell(const ForwardShape& shape, i64 tokens, cudaStream_t stream)
      : rows_(shape.experts * tokens),
        fc1_(random_buffer(2 * values(shape), 1 / std::sqrt(1.0 * static_cast<double>(shape.hidden)), 1, stream)),
        fc2_(random_buffer(values(shape), 1 / std::sqrt(1.0 * static_cast<double>(shape.width)), 2, stream)),
        fc1_grads_(fc1_.bytes()),
        fc2_grads_(fc2_.bytes()),
        x_(random_buffer(rows_ * shape.hidden, 1, 3, stream)),
        dout_(random_buffer(rows_ * shape.hidden, 1, 4, stream)),
        z_(random_buffer(2 * rows_ * shape.width, 1, 5, stream)),
        dx_(x_.bytes()),
        dprobs_(rows_ * static_cast<i64>(sizeof(float))),
        probs_(uploaded(random_probs(rows_))),
        splits_(uploaded(std::vector<i64>(static_cast<std::size_t>(shape.experts), tokens))),
        experts_(grouped_experts(shape, fc1_.data(), fc2_.data())),
        grads_(grouped_experts(shape, fc1_grads_.data(), fc2_grads_.data())),
        out_(x_.bytes()),
        forward_({shape.hidden, Dtype::BF16, {}, experts_}, rows_, stream),
        backward_({{shape.hidden, Dtype::BF16, {}, experts_}, grads_, false, false}, stream),
        workspace_(backward_.workspace_bytes(rows_, true)) {
    // The stream does not wait for what was uploaded without one.
    CUDA_CHECK(cudaDeviceSynchronize());
  }

  static i64 bytes_per_expert(const ForwardShape& shape, i64 tokens) {
    return 12 * shape.hidden * shape.width + tokens * kBf16 * (4 * shape.hidden + 9 * shape.width);
  }

  /// Saves z, or not.
  void forward(bool save, cudaStream_t stream) const {
    forward_.run(x_.data(), rows_, reinterpret_cast<const i64*>(splits_.data()),
                 reinterpret_cast<const float*>(probs_.data()), out_.data(), stream, save ? z_.data() : nullptr);
  }

  void run(bool recompute, cudaStream_t stream) const {
    backward_.run({rows_, x_.data(), reinterpret_cast<const float*>(probs_.data()), dout_.data(),
                   recompute ? nullptr : z_.data(), dx_.data(), reinterpret_cast<float*>(dprobs_.data())},
                  reinterpret_cast<const i64*>(splits_.data()), workspace_.data(), stream);
  }

 private:
  static i64 values(const ForwardShape& shape) { return shape.experts * shape.hidden * shape.width; }

  i64 rows_;
  DeviceBuffer fc1_, fc2_, fc1_grads_, fc2_grads_, x_, dout_, z_, dx_, dprobs_, probs_, splits_;
  std::vector<ExpertWeights> experts_, grads_;
  DeviceBuffer out_;
  DeviceGroupedMlp forward_;
  DeviceGroupedMlpBackward backward_;
  DeviceBuffer workspace_;
};

class Bench {
 public:
  explicit Bench(const ForwardBenchOptions& options) : options_(options) {
    const CudaDevice device = cuda_device(options.device);
    CUDA_CHECK(cudaSetDevice(options.device));
    timer_.emplace();
    memory_bytes_ = options.memory_bytes > 0 ? options.memory_bytes : device.free_bytes / 10 * 9;
    result_.no_cublas = why_no_cublas();
    if (result_.no_cublas.empty()) dense_.emplace(timer_->stream());
  }

  void time(const ForwardShape& shape, i64 tokens) {
    ForwardFigure figure;
    figure.shape = fitting(shape, tokens);
    figure.tokens_per_expert = tokens;
    if (options_.backward) time_backward(figure);
    const Cell cell(figure.shape, tokens, dense_.has_value(), timer_->stream());
    std::vector<EventTimer::Work> works{[&](cudaStream_t stream) { cell.read(stream); },
                                        [&](cudaStream_t stream) { cell.run(stream); }};
    if (dense_) works.emplace_back([&](cudaStream_t stream) { cell.run_cublas(stream); });
    const std::vector<double> medians = timer_->in_turn(works, options_.rounds, kMostMicroseconds);
    figure.read_microseconds = medians[0];
    figure.microseconds = medians[1];
    if (dense_) {
      figure.cublas_microseconds = medians[2];
      // It is not measured in turn with the others: it takes all the power that the device may draw, which would slow
      // them down.
      const std::vector<EventTimer::Work> dense{[&](cudaStream_t stream) { dense_->run(stream); }};
      figure.dense_microseconds = timer_->in_turn(dense, options_.rounds, kMostMicroseconds)[0];
      figure.cublas_difference = cell.difference(timer_->stream());
    }
    if (options_.on_figure) options_.on_figure(figure);
    result_.figures.push_back(std::move(figure));
  }

  ForwardBench take_result() { return std::move(result_); }

 private:
  void time_backward(ForwardFigure& figure) {
    const BackwardCell cell(figure.shape, figure.tokens_per_expert, timer_->stream());
    const std::vector<EventTimer::Work> works{[&](cudaStream_t stream) { cell.run(false, stream); },
                                              [&](cudaStream_t stream) { cell.run(true, stream); }};
    const std::vector<double> medians = timer_->in_turn(works, options_.rounds, kMostMicroseconds);
    figure.backward_microseconds = medians[0];
    figure.recompute_microseconds = medians[1];
    const std::vector<EventTimer::Work> forwards{[&](cudaStream_t stream) { cell.forward(true, stream); },
                                                 [&](cudaStream_t stream) { cell.forward(false, stream); }};
    const std::vector<double> forward_medians = timer_->in_turn(forwards, options_.rounds, kMostMicroseconds);
    figure.saving_microseconds = forward_medians[0];
    figure.not_saving_microseconds = forward_medians[1];
  }

  /// The shape with as many experts as there is memory for.
  ForwardShape fitting(ForwardShape shape, i64 tokens) const {
    const i64 backward_bytes = options_.backward ? BackwardCell::bytes_per_expert(shape, tokens) : 0;
    const i64 expert_bytes = std::max(Cell::bytes_per_expert(shape, tokens), backward_bytes);
    const i64 experts = (memory_bytes_ - DenseProduct::kBytes) / expert_bytes;
    if (experts < 1)
      fail(ErrorCode::NoMemory, {},
           "bench forward: {} bytes of cuda:{}'s memory are needed for one expert of {} with {} tokens, {} may be used",
           expert_bytes + DenseProduct::kBytes, options_.device, shape.model, tokens, memory_bytes_);
    shape.experts = std::min(shape.experts, experts);
    return shape;
  }

  const ForwardBenchOptions& options_;
  i64 memory_bytes_ = 0;
  /// Made once the device is current.
  std::optional<EventTimer> timer_;
  std::optional<DenseProduct> dense_;
  ForwardBench result_;
};

}  // namespace

ForwardBench bench_forward(const ForwardBenchOptions& options) {
  const std::vector<ForwardShape> shapes = shapes_named(options.model, "");
  const std::vector<i64> tokens = token_counts(options.tokens, {1, 8, 64, 256, 1024, 4096});
  Bench bench(options);
  for (const ForwardShape& shape : shapes)
    for (const i64 count : tokens) bench.time(shape, count);
  return bench.take_result();
}

}  // namespace glu_ckpt
