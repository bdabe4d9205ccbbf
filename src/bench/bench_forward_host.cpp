/// `glu-ckpt bench forward --device cpu`.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "bench/bench.hpp"
#include "bench/forward_shapes.hpp"
#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "glu_ckpt/forward.hpp"

namespace glu_ckpt {
namespace {

/// The bytes that one thread reads or fills at a time.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
/// A figure takes about this long, if three rounds do not take longer.
constexpr double kMostSeconds = 4;

using Clock = std::chrono::steady_clock;

/// bf16 values of both signs from 2^-7 to 2^-4: the same ones for the same seed.
void fill_piece(std::span<std::byte> piece, u64 seed) {
  u64 state = seed * 2 + 1;
  for (std::size_t at = 0; at + sizeof(u64) <= piece.size(); at += sizeof(u64)) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const u64 word = ((state >> 13) & 0x81ff81ff81ff81ffULL) + 0x3c003c003c003c00ULL;
    std::memcpy(piece.data() + at, &word, sizeof word);
  }
}

template <typename Task>
void for_pieces(std::span<std::byte> data, int jobs, const Task& task) {
  const std::size_t pieces = (data.size() + kPieceBytes - 1) / kPieceBytes;
  parallel_for(pieces, jobs, [&](std::size_t i, int) {
    task(data.subspan(i * kPieceBytes, std::min(kPieceBytes, data.size() - i * kPieceBytes)), i);
  });
}

void fill(std::span<std::byte> data, int jobs) { for_pieces(data, jobs, fill_piece); }

/// The exclusive or of all words of 8 bytes, so that none of the loads can be left out.
u64 read_all(std::span<std::byte> data, int jobs) {
  std::atomic<u64> all{0};
  for_pieces(data, jobs, [&](std::span<std::byte> piece, std::size_t) {
    u64 sums[8] = {};
    for (std::size_t at = 0; at + sizeof sums <= piece.size(); at += sizeof sums) {
      u64 words[8];
      std::memcpy(words, piece.data() + at, sizeof words);
      for (int lane = 0; lane < 8; ++lane) sums[lane] ^= words[lane];
    }
    for (const u64 sum : sums) all ^= sum;
  });
  return all;
}

class HostCell {
 public:
  HostCell(const ForwardShape& shape, i64 tokens, int jobs)
      : shape_(shape),
        jobs_(jobs),
        rows_(shape.experts * tokens),
        splits_(static_cast<std::size_t>(shape.experts), tokens),
        probs_(static_cast<std::size_t>(rows_), 0.25F),
        weights_(static_cast<std::size_t>(6 * shape.experts * shape.width * shape.hidden)),
        x_(static_cast<std::size_t>(2 * rows_ * shape.hidden)),
        out_(x_.size()) {
    fill(weights_, jobs);
    fill(x_, jobs);
    experts_ =
        grouped_experts(shape, weights_.data(), weights_.data() + 4 * shape.experts * shape.width * shape.hidden);
  }

  void forward() {
    grouped_mlp_host({shape_.hidden, Dtype::BF16, {}, experts_}, x_.data(), rows_, splits_, probs_.data(), out_.data(),
                     jobs_);
  }
  void read() { sink_ = read_all(weights_, jobs_); }

 private:
  ForwardShape shape_;
  int jobs_;
  i64 rows_;
  std::vector<i64> splits_;
  std::vector<float> probs_;
  /// FC1 and behind it FC2.
  std::vector<std::byte> weights_;
  std::vector<std::byte> x_, out_;
  std::vector<ExpertWeights> experts_;
  volatile u64 sink_ = 0;
};

template <typename Work>
double microseconds_of(const Work& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double upper_median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

ForwardFigure time_cell(const ForwardShape& shape, i64 tokens, const ForwardBenchOptions& options) {
  HostCell cell(shape, tokens, options.jobs);
  const auto forward = [&] { return microseconds_of([&] { cell.forward(); }); };
  const auto read = [&] { return microseconds_of([&] { cell.read(); }); };
  const double once = forward() + read();
  const double fitting = kMostSeconds * 1e6 / std::max(once, 1.0);
  const int rounds = static_cast<int>(std::clamp(fitting, std::min(3.0, 1.0 * options.rounds), 1.0 * options.rounds));
  std::vector<double> forwards, reads;
  for (int round = 0; round < rounds; ++round) {
    forwards.push_back(forward());
    reads.push_back(read());
  }
  ForwardFigure figure;
  figure.shape = shape;
  figure.tokens_per_expert = tokens;
  figure.microseconds = upper_median(forwards);
  figure.read_microseconds = upper_median(reads);
  return figure;
}

}  // namespace

ForwardBench bench_forward_host(const ForwardBenchOptions& options) {
  ForwardBench bench;
  bench.no_cublas = "cuBLAS computes on GPUs only";
  for (ForwardShape shape : shapes_named(options.model, "Qwen3-30B"))
    for (const i64 tokens : token_counts(options.tokens, {1, 4, 16})) {
      // bf16 weights and x; x and what lies between FC1 and FC2 in fp32; y.
      const i64 expert_bytes = 6 * shape.width * shape.hidden +
                               tokens * (2 * shape.hidden + 4 * (shape.hidden + shape.width) + 2 * shape.hidden);
      const i64 fitting = options.memory_bytes > 0 ? options.memory_bytes / expert_bytes : shape.experts;
      if (fitting < 1)
        fail(ErrorCode::NoMemory, {}, "bench forward: one expert of {} and {} tokens take {} bytes, {} may be used",
             shape.model, tokens, expert_bytes, options.memory_bytes);
      ForwardShape cut = shape;
      cut.experts = std::min(fitting, shape.experts);
      bench.figures.push_back(time_cell(cut, tokens, options));
      if (options.on_figure) options.on_figure(bench.figures.back());
    }
  return bench;
}

}  // namespace glu_ckpt
