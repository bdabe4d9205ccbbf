#include "forward/seeded_tokens.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "core/float_rows.hpp"
#include "core/hash.hpp"

namespace glu_ckpt {
namespace {

struct Filled {
  std::vector<float> x;
  std::vector<float> probs;
};

Filled fill(const SeededTokens& tokens, i64 expert, i64 hidden, Dtype dtype) {
  const i64 count = tokens.count(expert);
  Filled filled{std::vector<float>(static_cast<std::size_t>(count * hidden)),
                std::vector<float>(static_cast<std::size_t>(count))};
  std::vector<std::byte> bytes(filled.x.size() * static_cast<std::size_t>(dtype_bits(dtype) / 8));
  tokens.fill(expert, dtype, bytes.data(), filled.probs.data());
  widen_row(bytes.data(), dtype, filled.x);
  return filled;
}

/// The same on every machine and in every version: what verified once verifies again.
TEST(SeededTokens, AreTheseBits) {
  const SeededTokens tokens(0, "3/routed", 8, 100);
  const Filled filled = fill(tokens, 5, 100, Dtype::F32);
  EXPECT_EQ(hex(hash128(std::as_bytes(std::span(filled.x)), 0)), "e7297a08b663d65f12ffaa646abb3f43");
  EXPECT_EQ(hex(hash128(std::as_bytes(std::span(filled.probs)), 0)), "f08b32e1680ceff9e6400f8a509d9346");
}

TEST(SeededTokens, HaveTheValuesOfEveryDtype) {
  const SeededTokens tokens(7, "0/routed", 64, 512);
  double sum = 0, squares = 0, count = 0;
  for (i64 e = 0; e < 64; ++e) {
    const Filled filled = fill(tokens, e, 512, Dtype::F32);
    EXPECT_EQ(fill(tokens, e, 512, Dtype::BF16).x, filled.x);
    EXPECT_EQ(fill(tokens, e, 512, Dtype::F16).x, filled.x);
    for (const float value : filled.x) {
      sum += value;
      squares += value * value;
      ++count;
    }
    for (const float p : filled.probs) {
      EXPECT_GT(p, 0);
      EXPECT_LT(p, 1);
    }
  }
  EXPECT_NEAR(sum / count, 0, 0.02);
  EXPECT_NEAR(squares / count, 1, 0.03);
}

TEST(SeededTokens, DifferByExpertBlockSeedAndToken) {
  std::set<std::vector<float>> rows;
  std::size_t drawn = 0;
  for (const u64 seed : {0, 1})
    for (const char* const block : {"0/routed", "1/routed", "0/shared"}) {
      const SeededTokens tokens(seed, block, 16, 32);
      for (i64 e = 0; e < 16; ++e) {
        const Filled filled = fill(tokens, e, 32, Dtype::F32);
        for (i64 t = 0; t < tokens.count(e); ++t, ++drawn)
          rows.insert({filled.x.begin() + t * 32, filled.x.begin() + (t + 1) * 32});
      }
    }
  EXPECT_EQ(rows.size(), drawn);
}

TEST(SeededTokens, CountsAreUneven) {
  for (u64 seed = 0; seed < 200; ++seed)
    for (const i64 num_experts : {1, 2, 3, 8, 128}) {
      const SeededTokens tokens(seed, "0/routed", num_experts, 8);
      std::set<i64> counts;
      i64 total = 0;
      bool single = false;
      for (i64 e = 0; e < num_experts; ++e) {
        const i64 count = tokens.count(e);
        EXPECT_GE(count, 1);
        EXPECT_LE(count, 7);
        counts.insert(count);
        total += count;
        single = single || (count == 1 && e != tokens.isolated_expert());
      }
      EXPECT_EQ(tokens.isolated_expert() >= 0, num_experts > 1);
      EXPECT_LT(tokens.isolated_expert(), num_experts);
      EXPECT_TRUE(single || num_experts < 3) << num_experts;
      if (num_experts == 128) {
        EXPECT_GT(total, 3 * num_experts);
        EXPECT_LT(total, 5 * num_experts);
        EXPECT_EQ(counts.size(), 7U);
      }
    }
}

}  // namespace
}  // namespace glu_ckpt
