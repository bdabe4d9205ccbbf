#include "glu_ckpt/ops/token_padding.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "glu_ckpt/forward.hpp"
#include "support/mlp_cases.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

constexpr std::byte kPoison{0xa5};

/// Some empty, some of one row, some a multiple of the alignment already.
std::vector<i64> random_splits(i64 alignment, std::mt19937& random) {
  std::vector<i64> splits(1 + random() % 7);
  for (i64& split : splits) {
    const unsigned kind = random() % 4;
    split = kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? 2 * alignment : static_cast<i64>(random() % 70);
  }
  return splits;
}

std::vector<std::byte> position_coded(i64 bytes) {
  std::vector<std::byte> data(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(1 + i * 7 % 255);
  return data;
}

std::vector<std::byte> padded_copy(const TokenPadding& padding, const std::vector<std::byte>& rows, i64 row_bytes) {
  std::vector<std::byte> padded(static_cast<std::size_t>(padding.padded_rows * row_bytes), kPoison);
  pad_rows(padding, rows, row_bytes, padded);
  return padded;
}

TEST(TokenPadding, TheAlignmentOfEachRecipe) {
  EXPECT_EQ(token_alignment(TokenRecipe::None, false), 0);
  EXPECT_EQ(token_alignment(TokenRecipe::Fp8, false), 16);
  EXPECT_EQ(token_alignment(TokenRecipe::Mxfp8, false), 32);
  EXPECT_EQ(token_alignment(TokenRecipe::Fp4, false), 128);
  for (const TokenRecipe recipe : {TokenRecipe::None, TokenRecipe::Fp8, TokenRecipe::Mxfp8, TokenRecipe::Fp4})
    EXPECT_EQ(token_alignment(recipe, true), 256);
}

TEST(TokenPadding, SplitsAreRoundedUp) {
  const TokenPadding padding = make_token_padding(std::vector<i64>{0, 1, 31, 32, 33, 64}, 32);
  EXPECT_EQ(padding.padded_splits, (std::vector<i64>{0, 32, 32, 32, 64, 64}));
  EXPECT_EQ(padding.rows, 161);
  EXPECT_EQ(padding.padded_rows, 224);
  for (const i64 alignment : {0, 1})
    EXPECT_EQ(make_token_padding(std::vector<i64>{0, 1, 5}, alignment).padded_splits, (std::vector<i64>{0, 1, 5}));
  EXPECT_EQ(make_token_padding({}, 16).padded_rows, 0);
}

TEST(TokenPadding, WhatCannotBeIsRefused) {
  constexpr i64 kMost = std::numeric_limits<i64>::max();
  const auto slug_of_splits = [](const std::vector<i64>& splits, i64 alignment) {
    return slug_of([&] { make_token_padding(splits, alignment); });
  };
  EXPECT_EQ(slug_of_splits({1, -1}, 16), "usage");
  EXPECT_EQ(slug_of_splits({1}, -16), "usage");
  EXPECT_EQ(slug_of_splits({kMost}, 0), "none");
  EXPECT_EQ(slug_of_splits({kMost}, 2), "shape-overflow");
  EXPECT_EQ(slug_of_splits({kMost, 1}, 0), "shape-overflow");
  EXPECT_EQ(slug_of_splits({kMost - 15, 1}, 16), "shape-overflow");

  const TokenPadding padding = make_token_padding(std::vector<i64>{3, 2}, 4);
  std::vector<std::byte> rows(5 * 6), padded(8 * 6);
  EXPECT_EQ(slug_of([&] { pad_rows(padding, rows, 6, padded); }), "none");
  EXPECT_EQ(slug_of([&] { pad_rows(padding, rows, 5, padded); }), "usage");
  EXPECT_EQ(slug_of([&] { pad_rows(padding, rows, 0, padded); }), "usage");
  EXPECT_EQ(slug_of([&] { pad_rows(padding, std::span(rows).first(29), 6, padded); }), "usage");
  EXPECT_EQ(slug_of([&] { pad_rows(padding, rows, 6, std::span(padded).first(47)); }), "usage");
  EXPECT_EQ(slug_of([&] { unpad_rows(padding, padded, 6, std::span(rows).first(29)); }), "usage");
  EXPECT_EQ(slug_of([&] { unpad_rows(padding, std::span(padded).first(47), 6, rows); }), "usage");
  const TokenPadding large = make_token_padding(std::vector<i64>{kMost / 2}, 0);
  EXPECT_EQ(slug_of([&] { pad_rows(large, {}, 4, {}); }), "shape-overflow");
}

/// A padding that somebody filled in themselves must not make copies leave their memory.
TEST(TokenPadding, NumbersThatContradictEachOtherAreRefused) {
  std::vector<std::byte> rows(5), padded(8);
  const auto slug_of_padding = [&](const TokenPadding& padding) {
    const std::string forth = slug_of([&] { pad_rows(padding, rows, 1, padded); });
    EXPECT_EQ(slug_of([&] { unpad_rows(padding, padded, 1, rows); }), forth);
    return forth;
  };
  EXPECT_EQ(slug_of_padding({{3, 2}, {4, 4}, 5, 8}), "none");
  EXPECT_EQ(slug_of_padding({{3, 3}, {4, 4}, 5, 8}), "usage");
  EXPECT_EQ(slug_of_padding({{3, 2}, {4, 5}, 5, 8}), "usage");
  EXPECT_EQ(slug_of_padding({{4, 1}, {3, 5}, 5, 8}), "usage");
  EXPECT_EQ(slug_of_padding({{-1, 6}, {2, 6}, 5, 8}), "usage");
  EXPECT_EQ(slug_of_padding({{3, 2}, {8}, 5, 8}), "usage");
}

/// Each row of the padded tensor is a token's, in order, or zeros; and the way back gives the tokens.
TEST(TokenPadding, ThereAndBack) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const i64 alignment = std::vector<i64>{0, 1, 3, 16, 32, 128, 256}[random() % 7];
    const i64 row_bytes = 1 + static_cast<i64>(random() % 40);
    const TokenPadding padding = make_token_padding(random_splits(alignment, random), alignment);
    SCOPED_TRACE(shape_text(padding.splits) + " to multiples of " + std::to_string(alignment));
    const auto rows = position_coded(padding.rows * row_bytes);
    const auto padded = padded_copy(padding, rows, row_bytes);
    std::vector<std::byte> expected;
    auto token = rows.begin();
    for (std::size_t e = 0; e < padding.splits.size(); ++e) {
      const i64 bytes = padding.splits[e] * row_bytes;
      expected.insert(expected.end(), token, token + bytes);
      token += bytes;
      if (alignment > 1) {
        EXPECT_EQ(padding.padded_splits[e] % alignment, 0);
      }
      EXPECT_LT(padding.padded_splits[e] - padding.splits[e], std::max<i64>(alignment, 1));
      expected.resize(expected.size() + static_cast<std::size_t>(padding.padded_splits[e] * row_bytes - bytes));
    }
    EXPECT_TRUE(padded == expected);
    std::vector<std::byte> back(rows.size(), kPoison);
    unpad_rows(padding, padded, row_bytes, back);
    EXPECT_TRUE(back == rows);
  }
}

/// A grouped MLP on padded tokens, unpadded, has the bits of one on the tokens themselves.
TEST(TokenPadding, PaddingChangesNoBitOfTheForwardPass) {
  std::mt19937 random(2);
  constexpr ActivationKind kKinds[] = {ActivationKind::Swiglu, ActivationKind::ClampedQuickGeglu,
                                       ActivationKind::SquaredRelu};
  for (int i = 0; i < 60; ++i) {
    const i64 alignment = std::vector<i64>{0, 16, 32, 128, 256}[random() % 5];
    MlpShape shape;
    shape.hidden = 8 + 4 * static_cast<i64>(random() % 3);
    shape.dtype = std::vector<Dtype>{Dtype::BF16, Dtype::F16, Dtype::F32}[random() % 3];
    shape.activation.kind = kKinds[random() % 3];
    shape.bias = random() % 2 == 0;
    const auto splits = random_splits(alignment, random);
    shape.widths.assign(splits.size(), 8);
    const StoredExperts stored(shape, random_experts(shape, random), {"interleaved:4", 4});
    const GroupedMlp mlp{shape.hidden, shape.dtype, shape.activation, stored.experts()};
    const TokenPadding padding = make_token_padding(splits, alignment);
    SCOPED_TRACE(shape_text(splits) + " to multiples of " + std::to_string(alignment));

    const i64 row_bytes = shape.hidden * dtype_bits(shape.dtype) / 8;
    const auto x = to_bytes(
        random_values(static_cast<std::size_t>(padding.rows * shape.hidden), 1, shape.dtype, random), shape.dtype);
    const auto probs =
        to_bytes(random_values(static_cast<std::size_t>(padding.rows), 0.5, Dtype::F32, random), Dtype::F32);
    std::vector<std::byte> out(x.size(), kPoison), unpadded(x.size());
    grouped_mlp_host(mlp, x.data(), padding.rows, padding.splits, reinterpret_cast<const float*>(probs.data()),
                     out.data(), 1);

    const auto padded_x = padded_copy(padding, x, row_bytes), padded_probs = padded_copy(padding, probs, sizeof(float));
    std::vector<std::byte> padded_out(padded_x.size(), kPoison);
    grouped_mlp_host(mlp, padded_x.data(), padding.padded_rows, padding.padded_splits,
                     reinterpret_cast<const float*>(padded_probs.data()), padded_out.data(), 1);
    unpad_rows(padding, padded_out, row_bytes, unpadded);
    EXPECT_TRUE(unpadded == out);
  }
}

}  // namespace
}  // namespace glu_ckpt
