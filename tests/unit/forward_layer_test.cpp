/// What of one layer is run together, and which tokens are refused.

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "glu_ckpt/forward.hpp"
#include "support/convert.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr i64 kExperts = 7;
constexpr i64 kHidden = 4;
constexpr i64 kWidth = 4;

ModelSpec small_model() {
  ModelSpec model;
  BlockSpec block;
  block.widths = widths(kExperts, kWidth);
  block.hidden = kHidden;
  block.dtype = Dtype::BF16;
  model.blocks.push_back(block);
  return model;
}

/// Tells how many experts and rows it was given, and writes zeros.
class CountingRunner final : public MlpRunner {
 public:
  explicit CountingRunner(i64 batch_bytes) : batch_bytes_(batch_bytes) {}
  void run(const GroupedMlp& mlp, const void*, i64 rows, std::span<const i64>, const float*, void* out, int) override {
    calls.emplace_back(std::ssize(mlp.experts), rows);
    std::memset(out, 0, static_cast<std::size_t>(rows * mlp.hidden * 2));
  }
  i64 batch_bytes(int) const override { return batch_bytes_; }
  std::string name() const override { return "none"; }

  std::vector<std::pair<i64, i64>> calls;

 private:
  i64 batch_bytes_;
};

/// Two experts for each token, all but number 2.
struct Tokens {
  std::vector<std::byte> x = std::vector<std::byte>(kExperts * kHidden * 2);
  std::vector<i64> index;
  std::vector<float> weights = std::vector<float>(kExperts * 2, 0.5F);
  RoutedTokens routed{kExperts, 2, Dtype::BF16, x, {}, weights};

  Tokens() {
    for (i64 t = 0; t < kExperts; ++t)
      for (const i64 expert : {t, (t + 1) % kExperts}) index.push_back(expert == 2 ? 3 : expert);
    routed.index = index;
  }
};

void run_layer(const Spelling& spelling, const RoutedTokens& tokens, const LayerOptions& options) {
  const ModelSpec model = small_model();
  const MemorySource source(build(model, spelling), {}, record_of(model, spelling));
  const Recognition recognition = recognize_source(source);
  forward_layer({&source, &recognition}, recognition.blocks[0], tokens, options);
}

/// Of 4 x 4 values an expert's matrices take half a cache line each where they are split, so that layouts differ in
/// what an expert takes in memory.
TEST(ForwardLayer, BatchesAreTheSameInEveryLayout) {
  constexpr i64 kExpertBytes = 3 * kHidden * kWidth * 2;
  const Tokens tokens;
  for (const i64 each : {1, 2, 3, 4, 7}) {
    std::vector<std::pair<i64, i64>> first;
    for (const Spelling& spelling :
         {Spelling{"hf:deepseek_v3"}, Spelling{.glu = contiguous()}, Spelling{.glu = interleaved(1)},
          Spelling{.experts = Experts::Grouped, .bias_experts = Experts::Grouped, .glu = interleaved(2)}}) {
      CountingRunner runner(each * kExpertBytes);
      LayerOptions options;
      options.runner = &runner;
      run_layer(spelling, tokens.routed, options);
      if (first.empty()) first = runner.calls;
      EXPECT_EQ(runner.calls, first) << spelling.describe() << ", " << each << " at once";
    }
    EXPECT_EQ(std::ssize(first), (kExperts - 1 + each - 1) / each);
    // The expert without tokens is not read.
    EXPECT_EQ(first[0].first, std::min(each, kExperts - 1));
  }
}

TEST(ForwardLayer, MemoryBoundsWhatIsRunTogether) {
  const Tokens tokens;
  CountingRunner runner(i64{1} << 30);
  LayerOptions options;
  options.runner = &runner;
  options.memory_bytes = 1;
  run_layer({"hf:deepseek_v3"}, tokens.routed, options);
  EXPECT_EQ(runner.calls.size(), 6u);
}

TEST(ForwardLayer, RefusesTokensOfAnotherKind) {
  Tokens tokens;
  CountingRunner runner(i64{1} << 30);
  LayerOptions options;
  options.runner = &runner;
  const auto expect = [&](const RoutedTokens& routed, const std::string& word) {
    expect_error(
        ErrorCode::TokensInvalid, [&] { run_layer({"hf:deepseek_v3"}, routed, options); }, word);
  };
  RoutedTokens routed = tokens.routed;
  // Less than a byte an element, F16, and what is no float.
  for (const Dtype dtype : {Dtype::F4, Dtype::F16, Dtype::F32, Dtype::I64}) {
    routed.x_dtype = dtype;
    expect(routed, "x is ");
  }
  routed = tokens.routed;
  routed.tokens = 6;
  expect(routed, "x: 28 values, expected [6, 4]");
  routed = tokens.routed;
  routed.top_k = 0;
  expect(routed, "index: 14 values, expected [7, 0]");
  routed.top_k = 3;
  expect(routed, "index: 14 values, expected [7, 3]");
  routed = tokens.routed;
  routed.tokens = i64{1} << 62;
  expect(routed, "x: 28 values");
  EXPECT_TRUE(runner.calls.empty());
}

}  // namespace
}  // namespace glu_ckpt
