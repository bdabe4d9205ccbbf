#include "core/float_rows.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "support/mlp_cases.hpp"

namespace glu_ckpt {
namespace {

/// All 65536 values there are.
TEST(FloatRows, WidenEveryValueExactlyAndBack) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16})
    for (u32 number = 0; number < 0x10000; ++number) {
      const auto bits = static_cast<std::uint16_t>(number);
      std::byte bytes[2];
      std::memcpy(bytes, &bits, 2);
      const float value = widen_element(bytes, dtype);
      const double expected = support::to_doubles(bytes, dtype)[0];
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << number;
        continue;
      }
      EXPECT_EQ(value, expected) << dtype_name(dtype) << " " << number;
      EXPECT_EQ(std::signbit(value), std::signbit(expected)) << number;
      std::byte back[2];
      narrow_row({&value, 1}, dtype, back);
      EXPECT_EQ(std::memcmp(bytes, back, 2), 0) << number;
    }
}

/// All 65536 values of BF16, and as many of F32 with the same upper halves, some of them a little more.
TEST(FloatRows, CountNotFiniteOfEveryValue) {
  std::vector<std::uint16_t> narrow;
  std::vector<u32> wide;
  i64 narrow_found = 0, wide_found = 0;
  for (u32 number = 0; number < 0x10000; ++number) {
    narrow.push_back(static_cast<std::uint16_t>(number));
    wide.push_back(number << 16 | (number & 1));
    narrow_found +=
        std::isfinite(widen_element(reinterpret_cast<const std::byte*>(&narrow.back()), Dtype::BF16)) ? 0 : 1;
    wide_found += std::isfinite(std::bit_cast<float>(wide.back())) ? 0 : 1;
  }
  EXPECT_EQ(count_not_finite(std::as_bytes(std::span(narrow)), Dtype::BF16), narrow_found);
  EXPECT_EQ(count_not_finite(std::as_bytes(std::span(wide)), Dtype::F32), wide_found);
  EXPECT_EQ(narrow_found, 2 * 128);
}

/// One NaN or infinity at each place of a vector, at an odd address; and more of them than 16 bits count.
TEST(FloatRows, CountNotFiniteAtAnyPlace) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32}) {
    const auto size = static_cast<std::size_t>(dtype_bits(dtype) / 8);
    std::vector<std::byte> bytes(1 + 131 * size);
    const std::span<std::byte> elements = std::span(bytes).subspan(1);
    for (std::size_t at = 0; at < elements.size(); at += size) {
      using Limits = std::numeric_limits<float>;
      const float special = at / size % 2 == 0 ? Limits::quiet_NaN() : -Limits::infinity();
      narrow_row({&special, 1}, dtype, elements.data() + at);
      EXPECT_EQ(count_not_finite(elements, dtype), static_cast<i64>(at / size) + 1);
      EXPECT_EQ(count_not_finite(elements.first(at), dtype), static_cast<i64>(at / size));
    }
    const std::vector<std::byte> all(200'001 * size, std::byte{0xff});
    EXPECT_EQ(count_not_finite(all, dtype), 200'001);
    EXPECT_EQ(count_not_finite({}, dtype), 0);
  }
}

TEST(FloatRows, RoundToNearestEven) {
  EXPECT_EQ(round_to(1 + 0x1p-8F, Dtype::BF16), 1);
  EXPECT_EQ(round_to(1 + 0x1.8p-7F, Dtype::BF16), 1 + 0x1p-6F);
  EXPECT_EQ(round_to(1 + 0x1p-11F, Dtype::F16), 1);
  EXPECT_EQ(round_to(1e6F, Dtype::F16), HUGE_VALF);
  EXPECT_EQ(round_to(1.1F, Dtype::F32), 1.1F);
}

TEST(FloatRows, NoElementsNeedNoAddress) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32}) {
    widen_row(nullptr, dtype, {});
    narrow_row({}, dtype, nullptr);
  }
}

/// One value of each sign, exponent and upper mantissa, at every place where rounding turns.
TEST(FloatRows, RoundManyAsOne) {
  for (const Dtype dtype : {Dtype::BF16, Dtype::F16, Dtype::F32})
    for (const u32 low : {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x1001U, 0x2000U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      std::vector<float> values;
      for (u32 high = 0; high < 0x1'0000; ++high) values.push_back(std::bit_cast<float>(high << 16 | low));
      std::vector<float> rounded = values;
      round_row(rounded, dtype);
      std::vector<std::byte> narrow(values.size() * 4);
      narrow_row(values, dtype, narrow.data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const u32 bits = std::bit_cast<u32>(values[i]);
        const u32 expected = std::bit_cast<u32>(round_to(values[i], dtype));
        ASSERT_EQ(std::bit_cast<u32>(rounded[i]), expected) << dtype_name(dtype) << " " << bits;
        ASSERT_EQ(std::bit_cast<u32>(
                      widen_element(narrow.data() + i * static_cast<std::size_t>(dtype_bits(dtype) / 8), dtype)),
                  expected);
        if (dtype == Dtype::BF16) {
          ASSERT_EQ(expected >> 16, round_to_bf16(bits));
        }
      }
    }
}

}  // namespace
}  // namespace glu_ckpt
