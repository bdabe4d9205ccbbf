/// compare_elements() against diff_stats_host(), which is written from the definition, and numbers worked by hand.

#include "verify/compare_elements.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/element_text.hpp"
#include "glu_ckpt/ops/tensor_diff.hpp"

namespace glu_ckpt {
namespace {

using Bytes = std::vector<std::byte>;

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

ElementDiff compare_floats(const std::vector<float>& a, const std::vector<float>& b) {
  return compare_elements(Dtype::F32, bytes_of(a), Dtype::F32, bytes_of(b));
}

TEST(CompareElements, CountsMeasuresAndFindsTheFirst) {
  const ElementDiff found = compare_floats({1, 2, 4, 8}, {1, 3, 4, 7});
  EXPECT_EQ(found.elements, 4);
  EXPECT_EQ(found.differing, 2);
  EXPECT_EQ(found.first, 1);
  EXPECT_EQ(found.max_abs, 1);
  EXPECT_EQ(found.max_rel, 0.5);
  EXPECT_EQ(found.sum_squares, 2);
  EXPECT_EQ(found.rms(), std::sqrt(0.5));
  EXPECT_EQ(found.squares_a, 85);
  EXPECT_EQ(found.squares_b, 75);
  EXPECT_EQ(found.relative_norm(), std::sqrt(2.0) / std::sqrt(85.0));
  EXPECT_NEAR(found.cosine(), 79 / std::sqrt(85.0 * 75.0), 1e-15);
}

TEST(CompareElements, EqualOnesAreAllZero) {
  for (const i64 count : {0, 1, 7, 1024, 5000}) {
    const std::vector<float> values(static_cast<std::size_t>(count), std::nanf(""));
    const ElementDiff found = compare_floats(values, values);
    EXPECT_EQ(found.elements, count);
    EXPECT_EQ(found.differing, 0);
    EXPECT_EQ(found.first, -1);
    EXPECT_EQ(found.nan_in_one, 0);
  }
}

TEST(CompareElements, NormsAndAnglesAtTheirLimits) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(compare_floats({0, 0}, {0, 0}).relative_norm(), 0);
  EXPECT_TRUE(std::isnan(compare_floats({0, 0}, {0, 0}).cosine()));
  EXPECT_TRUE(std::isinf(compare_floats({0, 0}, {3, 4}).relative_norm()));
  EXPECT_TRUE(std::isnan(compare_floats({0, 0}, {3, 4}).cosine()));
  EXPECT_EQ(compare_floats({3, 4}, {0, 0}).relative_norm(), 1);
  EXPECT_EQ(compare_floats({3, 4}, {-3, -4}).cosine(), -1);
  EXPECT_EQ(compare_floats({3, 4}, {-4, 3}).cosine(), 0);
  EXPECT_EQ(compare_floats({3, 4}, {6, 8}).cosine(), 1);
  EXPECT_EQ(compare_floats({3, 4}, {3, 4}).cosine(), 1);
  // What is a NaN or infinite in one is in neither norm.
  EXPECT_EQ(compare_floats({nan, 3, infinity}, {1, 3, infinity}).squares_a, 9);
  EXPECT_EQ(compare_floats({nan, 3, infinity}, {nan, 3, infinity}).squares_b, 9);
  EXPECT_TRUE(std::isinf(compare_floats({3, 1}, {3, infinity}).relative_norm()));
  EXPECT_TRUE(std::isnan(compare_floats({3, 1}, {3, infinity}).cosine()));
}

/// A part whose bits are equal goes past the loop for others: both sum in the same order, to the last bit.
TEST(CompareElements, EqualPartsHaveTheNormsOfOthers) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> a(3000);
  for (double& value : a) value = normal(random);
  std::vector<double> b = a;
  b[1500] += 1;
  std::vector<double> c = a;
  c[0] += 1;
  const auto norm = [&](const std::vector<double>& other) {
    return compare_elements(Dtype::F64, bytes_of(a), Dtype::F64, bytes_of(other)).squares_a;
  };
  EXPECT_EQ(norm(a), norm(b));
  EXPECT_EQ(norm(a), norm(c));
}

/// Bits of every kind: NaN, infinities, zeros of both signs, subnormals, and most of all differences at each place of a
/// part and behind it.
TEST(CompareElements, AgreesWithTheDefinition) {
  std::mt19937_64 random(1);
  for (const Dtype dtype : {Dtype::U8, Dtype::I16, Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64, Dtype::I64}) {
    const auto size = static_cast<std::size_t>(dtype_bits(dtype) / 8);
    for (int round = 0; round < 200; ++round) {
      const std::size_t count = random() % 3000;
      Bytes a(count * size);
      for (std::byte& byte : a) byte = static_cast<std::byte>(random());
      Bytes b = a;
      for (std::size_t i = 0; i < count; ++i)
        if (round % 4 == 0 || random() % (round % 4 == 1 ? 2000 : 10) == 0)
          b[i * size + random() % size] ^= static_cast<std::byte>(1 + random() % 255);
      SCOPED_TRACE(fmt::format("{} round {} count {}", dtype_name(dtype), round, count));
      const DiffStats expected = diff_stats_host(a.data(), b.data(), static_cast<i64>(count), dtype);
      const ElementDiff found = compare_elements(dtype, a, dtype, b);
      EXPECT_EQ(found.elements, expected.elements);
      EXPECT_EQ(found.differing, expected.differing);
      EXPECT_EQ(found.first, expected.first);
      EXPECT_EQ(found.max_abs, expected.max_abs);
      EXPECT_EQ(found.max_rel, expected.max_rel);
      EXPECT_EQ(found.nan_in_one, expected.nan_in_one);
    }
  }
}

TEST(CompareElements, TheSumOfSquaresIsThatOfTheDifferences) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> a(4999), b(4999);
  long double sum = 0;
  long double norm = 0, product = 0, other = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = normal(random);
    b[i] = i % 3 == 0 ? a[i] : normal(random);
    const long double x = static_cast<long double>(a[i]), y = static_cast<long double>(b[i]);
    sum += (x - y) * (x - y);
    norm += x * x;
    other += y * y;
    product += x * y;
  }
  // Each of 5000 sums rounds by at most half a unit in the last place.
  const ElementDiff found = compare_floats(a, b);
  EXPECT_NEAR(found.sum_squares, static_cast<double>(sum), static_cast<double>(sum) * 5000 * 0x1p-53);
  EXPECT_NEAR(found.squares_a, static_cast<double>(norm), static_cast<double>(norm) * 5000 * 0x1p-53);
  EXPECT_NEAR(found.relative_norm(), static_cast<double>(std::sqrt(sum / norm)), 1e-12);
  EXPECT_NEAR(found.cosine(), static_cast<double>(product / std::sqrt(norm * other)), 1e-12);
}

TEST(CompareElements, DtypesThatAreBothFloatsCompareByValue) {
  const std::vector<float> wide = {1.0F, 1.00390625F, -2.0F, std::nanf(""), 0.0F};
  const std::vector<std::uint16_t> narrow = {0x3f80, 0x3f80, 0xc000, 0x7fc1, 0x8000};
  const ElementDiff found = compare_elements(Dtype::F32, bytes_of(wide), Dtype::BF16, bytes_of(narrow));
  EXPECT_EQ(found.elements, 5);
  EXPECT_EQ(found.differing, 1);
  EXPECT_EQ(found.first, 1);
  EXPECT_EQ(found.max_abs, 0.00390625);
  EXPECT_EQ(found.nan_in_one, 0);
}

TEST(CompareElements, PiecesBehindEachOtherAreTheWhole) {
  ElementDiff total = compare_floats({1, 2}, {1, 2});
  append(total, compare_floats({3, 4, 5}, {3, 6, 5}));
  append(total, compare_floats({7}, {8}));
  EXPECT_EQ(total.elements, 6);
  EXPECT_EQ(total.first, 3);
  EXPECT_EQ(total.differing, 2);
  EXPECT_EQ(total.max_abs, 2);
  EXPECT_EQ(total.sum_squares, 5);
}

std::string number_of(Dtype dtype, u64 bits) {
  return number_text(dtype, std::as_bytes(std::span(&bits, 1)).first(static_cast<std::size_t>(dtype_bits(dtype) / 8)));
}

TEST(ElementText, NumbersOfEveryDtype) {
  EXPECT_EQ(number_of(Dtype::BF16, 0x3f81), "1.0078125");
  EXPECT_EQ(number_of(Dtype::BF16, 0xff80), "-inf");
  EXPECT_EQ(number_of(Dtype::F16, 0x0001), "5.9604645e-08");
  EXPECT_EQ(number_of(Dtype::F32, 0x3dcccccd), "0.1");
  EXPECT_EQ(number_of(Dtype::F64, 0x3fb999999999999a), "0.1");
  EXPECT_EQ(number_of(Dtype::I8, 0x80), "-128");
  EXPECT_EQ(number_of(Dtype::U64, ~u64{0}), "18446744073709551615");
  EXPECT_EQ(number_of(Dtype::BOOL, 1), "true");
  // ml_dtypes prints the same.
  EXPECT_EQ(number_of(Dtype::F8_E4M3, 0x7e), "448");
  EXPECT_EQ(number_of(Dtype::F8_E4M3, 0x01), "0.001953125");
  EXPECT_EQ(number_of(Dtype::F8_E4M3, 0x7f), "nan");
  EXPECT_EQ(number_of(Dtype::F8_E5M2, 0x7b), "57344");
  EXPECT_EQ(number_of(Dtype::F8_E5M2, 0xfc), "-inf");
  EXPECT_EQ(number_of(Dtype::F8_E5M2, 0x7d), "nan");
  EXPECT_EQ(number_of(Dtype::F8_E4M3FNUZ, 0x7f), "240");
  EXPECT_EQ(number_of(Dtype::F8_E4M3FNUZ, 0x80), "nan");
  EXPECT_EQ(number_of(Dtype::F8_E5M2FNUZ, 0x7f), "57344");
  EXPECT_EQ(number_of(Dtype::F8_E8M0, 0x80), "2");
  EXPECT_EQ(number_of(Dtype::F8_E8M0, 0xff), "nan");
  EXPECT_EQ(bits_text(std::as_bytes(std::span("\x80\x3f", 2))), "0x3f80");
}

}  // namespace
}  // namespace glu_ckpt
