/// Codes and scales as numbers: every code, on every level of instructions, beside the table that is made from the
/// formats' definitions, and a few values written down by hand.

#include "quant/decode_row.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "core/float_rows.hpp"

namespace glu_ckpt {
namespace {

constexpr Codes kByRow[] = {Codes::E4m3, Codes::E5m2, Codes::Int8, Codes::E2m1, Codes::Int4};

/// All 256 bytes, eleven times over with a shift, so that every code stands in every place of a vector.
std::vector<std::byte> all_codes() {
  std::vector<std::byte> codes;
  for (int round = 0; round < 11; ++round)
    for (int i = 0; i < 255; ++i) codes.push_back(static_cast<std::byte>(i + round));
  for (int i = 0; i < 256; ++i) codes.push_back(static_cast<std::byte>(i));
  return codes;
}

/// Ordinary ones, those of products that fp32 rounds, powers of two to the ends of the range, and none at all.
const std::vector<float> kScales = {
    1.0F,     0.1F,  0x1.fffffep-3F, 3.14159F,  0x1p-127F, 0x1p-100F, 0x1p127F,
    0x1p-20F, -0.7F, 0.0F,           0x1p-149F, 448.0F,    1.0F / 3,  std::numeric_limits<float>::infinity()};

std::vector<std::byte> decoded(const CodeRow& row, Dtype to, std::optional<SimdLevel> level) {
  std::vector<std::byte> out(static_cast<std::size_t>(row.count * dtype_bits(to) / 8));
  if (level)
    decode_row(row, to, out.data(), *level);
  else
    decode_row_by_table(row, to, out.data());
  return out;
}

/// Each code by itself: E4M3 has two for NaN, E5M2 six and two for infinity, and the other formats none.
TEST(DecodeRow, SpecialCodesBecomeNumbersThatAreCounted) {
  const float scale = 0.1F;
  for (const Codes format : kByRow)
    for (int number = 0; number < 256; ++number) {
      const int magnitude = number & 0x7f;
      const bool is_special =
          (format == Codes::E4m3 && magnitude == 0x7f) || (format == Codes::E5m2 && magnitude >= 0x7c);
      const std::byte code[2] = {static_cast<std::byte>(number), std::byte{0}};
      const float scales[2] = {scale, scale};
      for (const Dtype to : {Dtype::BF16, Dtype::F32})
        for (const SimdLevel level : simd_levels())
          EXPECT_EQ(count_not_finite(decoded({format, code, 2, scales, false}, to, level), to), is_special ? 1 : 0)
              << static_cast<int>(format) << " code " << number;
    }
}

/// Each code at each place of a row, the others being the greatest finite ones.
TEST(DecodeRow, SpecialCodesAreSeenAnywhere) {
  for (const Codes format : kByRow) {
    const std::byte finite{static_cast<unsigned char>(format == Codes::E5m2 ? 0xfb : 0xfe)};
    for (int number = 0; number < 256; ++number) {
      const int magnitude = number & 0x7f;
      const bool special = (format == Codes::E4m3 && magnitude == 0x7f) || (format == Codes::E5m2 && magnitude >= 0x7c);
      std::vector<std::byte> codes(150, finite);
      for (std::size_t at = 0; at < codes.size(); ++at) {
        codes[at] = static_cast<std::byte>(number);
        for (const SimdLevel level : simd_levels())
          EXPECT_EQ(has_special_code({format, codes.data(), std::ssize(codes)}, level), special)
              << number << " at " << at << " level " << static_cast<int>(level);
        codes[at] = finite;
      }
    }
  }
}

TEST(DecodeRow, EveryLevelGivesTheBitsOfTheTable) {
  const std::vector<std::byte> codes = all_codes();
  for (const Codes format : kByRow) {
    const i64 per_byte = code_bytes(format, 2) == 1 ? 2 : 1;
    // Lengths that are no multiple of a vector's.
    for (const i64 count : {std::ssize(codes) * per_byte, i64{2}, i64{62}, i64{1000}}) {
      std::vector<float> scales;
      for (i64 i = 0; i < count; ++i) scales.push_back(kScales[static_cast<std::size_t>(i / 7) % kScales.size()]);
      CodeRow row{format, codes.data(), count, scales.data(), false};
      for (const bool positive_zero : {false, true})
        for (const Dtype to : {Dtype::BF16, Dtype::F32})
          for (const SimdLevel level : simd_levels()) {
            row.positive_zero = positive_zero && format == Codes::E2m1;
            EXPECT_EQ(decoded(row, to, level), decoded(row, to, std::nullopt))
                << static_cast<int>(format) << " count " << count << " level " << static_cast<int>(level);
          }
    }
  }
}

float one(Codes format, int code, float scale, bool positive_zero = false) {
  const std::byte bytes[1] = {static_cast<std::byte>(code)};
  const float scales[2] = {scale, scale};
  const CodeRow row{format, bytes, code_bytes(format, 2) == 1 ? 2 : 1, scales, positive_zero};
  std::byte out[8];
  decode_row(row, Dtype::F32, out);
  float value = 0;
  std::memcpy(&value, out, sizeof value);
  return value;
}

TEST(DecodeRow, ValuesOfTheFormats) {
  EXPECT_EQ(one(Codes::E4m3, 0x7e, 1), 448);
  EXPECT_EQ(one(Codes::E4m3, 0x01, 1), 0x1p-9F);
  EXPECT_EQ(one(Codes::E4m3, 0x38, 1), 1);
  EXPECT_EQ(one(Codes::E4m3, 0xb8, 2), -2);
  EXPECT_EQ(one(Codes::E5m2, 0x7b, 1), 57344);
  EXPECT_EQ(one(Codes::E5m2, 0x01, 1), 0x1p-16F);
  EXPECT_TRUE(std::isinf(one(Codes::E5m2, 0x7c, 1)));
  EXPECT_EQ(one(Codes::Int8, 0x80, 1), -128);
  const float fp4[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) EXPECT_EQ(one(Codes::E2m1, code, 1), code < 8 ? fp4[code] : -fp4[code - 8]);
  for (int code = 0; code < 16; ++code) EXPECT_EQ(one(Codes::Int4, code, 1), static_cast<float>(code - 8));
}

TEST(DecodeRow, ZeroKeepsItsSignUnlessToldOtherwise) {
  EXPECT_TRUE(std::signbit(one(Codes::E2m1, 8, 1)));
  EXPECT_FALSE(std::signbit(one(Codes::E2m1, 8, 1, true)));
  EXPECT_TRUE(std::signbit(one(Codes::E4m3, 0x80, 1)));
}

TEST(DecodeRow, NanIsTheQuietOneWithoutASign) {
  for (const int code : {0x7f, 0xff}) {
    const std::byte bytes[1] = {static_cast<std::byte>(code)};
    const float scale = -2;
    for (const SimdLevel level : simd_levels()) {
      EXPECT_EQ(decoded({Codes::E4m3, bytes, 1, &scale}, Dtype::BF16, level),
                (std::vector<std::byte>{std::byte{0xc0}, std::byte{0x7f}}));
      EXPECT_EQ(decoded({Codes::E4m3, bytes, 1, &scale}, Dtype::F32, level),
                (std::vector<std::byte>{std::byte{0}, std::byte{0}, std::byte{0xc0}, std::byte{0x7f}}));
    }
  }
}

/// The lower half of a byte is the first code.
TEST(DecodeRow, HalvesStandInOrder) {
  const std::byte bytes[2] = {std::byte{0x21}, std::byte{0x43}};
  const float scales[4] = {1, 1, 1, 1};
  const auto out = decoded({Codes::E2m1, bytes, 4, scales}, Dtype::F32, simd_levels().front());
  float numbers[4];
  ASSERT_EQ(out.size(), sizeof numbers);
  std::memcpy(numbers, out.data(), sizeof numbers);
  EXPECT_TRUE(std::ranges::equal(numbers, std::to_array({0.5F, 1.0F, 1.5F, 2.0F})));
}

/// Rounded twice, as the references do it: to fp32, then to bf16. A decoder that computes in double and rounds once
/// gives the other neighbour.
TEST(DecodeRow, RoundsToFp32First) {
  int differing = 0;
  for (u32 mantissa = 1; mantissa < 0x80'0000; mantissa += 997) {
    const float scale = std::bit_cast<float>(u32{0x3f80'0000} | mantissa);
    const std::byte code{0x3b};  // 1.375
    std::byte out[2];
    decode_row({Codes::E4m3, &code, 1, &scale}, Dtype::BF16, out);
    std::uint16_t bits = 0;
    std::memcpy(&bits, out, sizeof bits);
    const float product = 1.375F * scale;
    const u32 once = std::bit_cast<u32>(product);
    EXPECT_EQ(bits, static_cast<std::uint16_t>((once + 0x7fff + (once >> 16 & 1)) >> 16));
    const double exact = 1.375 * static_cast<double>(scale);
    const float lower = std::bit_cast<float>(static_cast<u32>(bits) << 16);
    differing += std::abs(exact - static_cast<double>(lower)) > 0 ? 1 : 0;
  }
  EXPECT_GT(differing, 8000);  // the scales are such that rounding happens at all
}

TEST(ScaleValue, KindsOfScales) {
  const auto of = [](Dtype dtype, std::initializer_list<int> bytes) {
    std::byte data[4] = {};
    std::size_t i = 0;
    for (const int byte : bytes) data[i++] = static_cast<std::byte>(byte);
    return scale_value(dtype, data);
  };
  EXPECT_EQ(of(Dtype::F32, {0, 0, 0x20, 0x40}), 2.5F);
  EXPECT_EQ(of(Dtype::BF16, {0x20, 0x40}), 2.5F);
  EXPECT_EQ(of(Dtype::F16, {0, 0x41}), 2.5F);
  EXPECT_EQ(of(Dtype::F8_E4M3, {0x42}), 2.5F);
  EXPECT_EQ(of(Dtype::F8_E8M0, {127}), 1);
  EXPECT_EQ(of(Dtype::F8_E8M0, {0}), 0x1p-127F);
  EXPECT_EQ(of(Dtype::F8_E8M0, {254}), 0x1p127F);
  EXPECT_TRUE(std::isnan(of(Dtype::F8_E8M0, {255})));
}

}  // namespace
}  // namespace glu_ckpt
