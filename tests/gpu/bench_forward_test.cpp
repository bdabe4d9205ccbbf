/// What the forward bench measures with, against the host, and that the bench itself runs.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "bench/bench.hpp"
#include "forward/activation.hpp"
#include "gpu/guarded_array.hpp"
#include "kernels/bench/measure_kernels.hpp"
#include "support/mlp_cases.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

std::vector<u32> words_of(const GuardedArray& array) {
  const auto bytes = array.download();
  std::vector<u32> words(bytes.size() / sizeof(u32));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(u32));
  return words;
}

u32 exclusive_or(const std::vector<u32>& words) {
  u32 all = 0;
  for (const u32 word : words) all ^= word;
  return all;
}

/// Around a thread's load, a warp's, a block's, and more blocks than there are sums. Every word is different, so that
/// one that is left out or read twice changes the result.
TEST(PlainRead, EveryWordOnce) {
  for (const i64 bytes : {0, 16, 512, 4080, 4096, 32752, 32768, 32784, 65536 + 16, (1 << 26) + 48}) {
    std::vector<u32> words(static_cast<std::size_t>(bytes) / sizeof(u32));
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<u32>(i + 1) * 2654435761U;
    const GuardedArray data(words), sums(std::vector<u32>(kReadSums, 0U));
    plain_read(data.data(), bytes, reinterpret_cast<u32*>(sums.data()), nullptr);
    EXPECT_EQ(exclusive_or(words_of(sums)), exclusive_or(words)) << bytes;
    EXPECT_TRUE(sums.guards_intact());
    plain_read(data.data(), bytes, reinterpret_cast<u32*>(sums.data()), nullptr);
    EXPECT_EQ(exclusive_or(words_of(sums)), 0U) << bytes;
  }
  const GuardedArray data(64), sums(kReadSums * 4);
  u32* const first = reinterpret_cast<u32*>(sums.data());
  EXPECT_EQ(slug_of([&] { plain_read(data.data(), 24, first, nullptr); }), "usage");
  EXPECT_EQ(slug_of([&] { plain_read(data.data() + 8, 16, first, nullptr); }), "usage");
}

TEST(RandomFill, NearNormalAndTheSameForASeed) {
  constexpr i64 kCount = (1 << 20) + 8;
  const GuardedArray a(kCount * 2), b(kCount * 2), c(kCount * 2);
  random_fill_bf16(a.data(), kCount, 0.5F, 7, nullptr);
  random_fill_bf16(b.data(), kCount, 0.5F, 7, nullptr);
  random_fill_bf16(c.data(), kCount, 0.5F, 8, nullptr);
  EXPECT_TRUE(a.guards_intact());
  const auto bytes = a.download();
  EXPECT_TRUE(bytes == b.download());
  const auto values = support::to_doubles(bytes, Dtype::BF16), others = support::to_doubles(c.download(), Dtype::BF16);
  double sum = 0, squares = 0, products = 0, neighbours = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    squares += values[i] * values[i];
    products += values[i] * others[i];
    if (i > 0) neighbours += values[i] * values[i - 1];
  }
  // Seven deviations of means of a million values.
  EXPECT_NEAR(sum / kCount, 0, 0.0035);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.5, 0.0025);
  EXPECT_NEAR(products / kCount, 0, 0.0018);
  EXPECT_NEAR(neighbours / kCount, 0, 0.0018);
}

/// z of random values, against the CPU's activation, whose exponential is exact: what is left is the fast one's error
/// and one rounding to 8 bits.
void expect_swiglu(i64 rows, i64 width, i64 block_cols) {
  SCOPED_TRACE(std::to_string(rows) + " " + std::to_string(width) + " " + std::to_string(block_cols));
  std::mt19937 random(static_cast<unsigned>(rows * 31 + width));
  const auto z = support::random_values(static_cast<std::size_t>(2 * rows * width), 3, Dtype::BF16, random);
  std::vector<float> probs;
  for (i64 t = 0; t < rows; ++t) probs.push_back(0.25F * static_cast<float>(t % 7 + 1));
  const GuardedArray device_z(support::to_bytes(z, Dtype::BF16)), device_probs(probs), y(rows * width * 2);
  plain_swiglu(device_z.data(), reinterpret_cast<const float*>(device_probs.data()), rows, width, block_cols, y.data(),
               nullptr);
  EXPECT_TRUE(y.guards_intact());
  const auto got = support::to_doubles(y.download(), Dtype::BF16);
  for (i64 t = 0; t < rows; ++t)
    for (i64 c = 0; c < width; ++c) {
      const i64 gate = 2 * t * width + c / block_cols * 2 * block_cols + c % block_cols;
      const double expected =
          static_cast<double>(activate({}, static_cast<float>(z[static_cast<std::size_t>(gate)]),
                                       static_cast<float>(z[static_cast<std::size_t>(gate + block_cols)]))) *
          static_cast<double>(probs[static_cast<std::size_t>(t)]);
      ASSERT_NEAR(got[static_cast<std::size_t>(t * width + c)], expected, std::abs(expected) / 200 + 1e-30);
    }
}

TEST(PlainSwiglu, AsTheCpuComputesIt) {
  expect_swiglu(1, 8, 8);
  expect_swiglu(3, 64, 32);
  expect_swiglu(5, 64, 64);
  expect_swiglu(37, 768, 32);
  expect_swiglu(129, 2048, 8);
  expect_swiglu(0, 64, 32);
  const GuardedArray data(4096);
  EXPECT_EQ(slug_of([&] { plain_swiglu(data.data(), nullptr, 1, 64, 12, data.data(), nullptr); }), "usage");
  EXPECT_EQ(slug_of([&] { plain_swiglu(data.data(), nullptr, 1, 48, 32, data.data(), nullptr); }), "usage");
}

/// As many experts of a small model as little memory holds, so that it is quick; nothing about how fast it is.
TEST(BenchForward, AFigureForEachCount) {
  ForwardBenchOptions options;
  options.model = "Qwen3-30B";
  options.tokens = {1, 3};
  options.rounds = 2;
  options.memory_bytes = i64{450} << 20;
  options.backward = true;
  int called = 0;
  options.on_figure = [&](const ForwardFigure&) { ++called; };
  const ForwardBench bench = bench_forward(options);
  EXPECT_EQ(called, 2);
  ASSERT_EQ(bench.figures.size(), 2U);
  for (const ForwardFigure& figure : bench.figures) {
    EXPECT_GT(figure.microseconds, 0);
    EXPECT_GT(figure.read_microseconds, 0);
    EXPECT_GT(figure.backward_microseconds, 0);
    EXPECT_GT(figure.recompute_microseconds, 0);
    EXPECT_EQ(figure.cublas_microseconds > 0, bench.no_cublas.empty());
    EXPECT_EQ(figure.dense_microseconds > 0, bench.no_cublas.empty());
    EXPECT_LT(figure.cublas_difference, 0.25);
    EXPECT_LT(figure.shape.experts, 128);
  }
  EXPECT_EQ(bench.figures[1].tokens_per_expert, 3);
  options.memory_bytes = i64{100} << 20;
  EXPECT_EQ(slug_of([&] { bench_forward(options); }), "no-memory");
}

}  // namespace
}  // namespace glu_ckpt
