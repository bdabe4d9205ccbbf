#include "glu_ckpt/ops/mxfp8.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using Bytes = std::vector<u8>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

float from_bits(u32 bits) { return std::bit_cast<float>(bits); }
float from_bf16(u32 bits) { return from_bits(bits << 16); }

// ---- one number ---------------------------------------------------------------------------------

/// The value of a code by the formula of its format, in double.
double formula(u8 code, Dtype element) {
  const int mantissa_bits = element == Dtype::F8_E4M3 ? 3 : 2;
  const int bias = element == Dtype::F8_E4M3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
  const double ulp = std::ldexp(1.0, std::max(exponent, 1) - bias - mantissa_bits);
  return sign * ulp * (mantissa + (exponent > 0 ? 1 << mantissa_bits : 0));
}

bool is_nan_code(u8 code, Dtype element) { return (code & 0x7f) > (element == Dtype::F8_E4M3 ? 0x7e : 0x7c); }
bool is_infinite_code(u8 code, Dtype element) { return element == Dtype::F8_E5M2 && (code & 0x7f) == 0x7c; }
u8 max_code(Dtype element) { return element == Dtype::F8_E4M3 ? 0x7e : 0x7b; }

TEST(Fp8, EveryCodeHasTheValueOfItsFormula) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (int i = 0; i < 256; ++i) {
      const auto code = static_cast<u8>(i);
      const float value = fp8_value(code, element);
      if (is_nan_code(code, element)) {
        EXPECT_TRUE(std::isnan(value)) << i;
      } else if (is_infinite_code(code, element)) {
        EXPECT_EQ(value, i < 128 ? kInfinity : -kInfinity);
      } else {
        EXPECT_EQ(static_cast<double>(value), formula(code, element)) << i;
        EXPECT_EQ(std::signbit(value), i >= 128) << i;
        EXPECT_EQ(round_to_fp8(value, element), code) << i;
      }
    }
  EXPECT_EQ(fp8_value(0x7e, Dtype::F8_E4M3), 448.0F);
  EXPECT_EQ(fp8_value(0x7b, Dtype::F8_E5M2), 57344.0F);
}

/// The code nearest to `value` of all codes there are; of two, the one that is even.
u8 nearest(float value, Dtype element) {
  if (std::isnan(value)) return 0x7f;
  const u8 sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  u8 best = 0;
  for (u8 code = 0; code <= max_code(element); ++code) {
    const double distance = std::fabs(formula(code, element) - magnitude);
    const double least = std::fabs(formula(best, element) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  if (magnitude > formula(max_code(element), element)) best = max_code(element);
  return static_cast<u8>(sign | best);
}

TEST(Fp8, EveryBf16ValueRoundsToTheNearestCode) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (u32 bits = 0; bits < 65536; ++bits)
      ASSERT_EQ(round_to_fp8(from_bf16(bits), element), nearest(from_bf16(bits), element)) << std::hex << bits;
}

/// A value between two codes, and its neighbours in fp32.
TEST(Fp8, TiesGoToEvenCodes) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (u8 code = 0; code < max_code(element); ++code) {
      const double between = (formula(code, element) + formula(static_cast<u8>(code + 1), element)) / 2;
      const auto middle = static_cast<float>(between);
      ASSERT_EQ(static_cast<double>(middle), between);
      const u8 even = static_cast<u8>(code + code % 2);
      const u8 next = static_cast<u8>(code + 1);
      EXPECT_EQ(round_to_fp8(middle, element), even);
      EXPECT_EQ(round_to_fp8(-middle, element), even | 0x80);
      EXPECT_EQ(round_to_fp8(std::nextafter(middle, 0.0F), element), code);
      EXPECT_EQ(round_to_fp8(std::nextafter(middle, kInfinity), element), next);
    }
}

TEST(Fp8, NothingBecomesInfinite) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2}) {
    for (const float value : {kInfinity, 1e38F, 60000.0F * 2, from_bits(0x7f7f'ffff)})
      EXPECT_EQ(round_to_fp8(value, element), max_code(element));
    EXPECT_EQ(round_to_fp8(-kInfinity, element), 0x80 | max_code(element));
    for (const u32 nan : {0x7fc0'0000U, 0xffc0'0000U, 0x7f80'0001U, 0xffff'ffffU})
      EXPECT_EQ(round_to_fp8(from_bits(nan), element), 0x7f);
  }
  EXPECT_EQ(slug_of([] { round_to_fp8(1, Dtype::F16); }), "usage");
  EXPECT_EQ(slug_of([] { fp8_value(1, Dtype::U8); }), "usage");
}

/// Section by section of the rule: special values, then the least power of two that is not below r.
TEST(E8m0, RoundsUp) {
  EXPECT_EQ(e8m0_round_up(kNan), 0xff);
  EXPECT_EQ(e8m0_round_up(kInfinity), 0xfe);
  EXPECT_EQ(e8m0_round_up(0.0F), 0);
  for (int e = 1; e <= 254; ++e) {
    const float power = from_bits(static_cast<u32>(e) << 23);
    EXPECT_EQ(e8m0_round_up(power), e);
    EXPECT_EQ(e8m0_round_up(std::nextafter(power, kInfinity)), std::min(e + 1, 254));
    EXPECT_EQ(e8m0_round_up(from_bits((static_cast<u32>(e) << 23) | 0x7f'ffff)), std::min(e + 1, 254));
  }
  // 2^-127 is subnormal in fp32: bits 0x400000.
  for (const u32 bits : {1U, 0x1234U, 0x3f'ffffU, 0x40'0000U}) EXPECT_EQ(e8m0_round_up(from_bits(bits)), 0) << bits;
  for (const u32 bits : {0x40'0001U, 0x7f'ffffU}) EXPECT_EQ(e8m0_round_up(from_bits(bits)), 1) << bits;
  EXPECT_EQ(e8m0_round_up(from_bits(0x7f7f'ffff)), 254);
}

TEST(E8m0, RandomRatiosAgainstTheDefinition) {
  std::mt19937 random(5);
  for (int n = 0; n < 200'000; ++n) {
    const float r = from_bits(random() & 0x7fff'ffff);
    if (!std::isfinite(r) || r == 0) continue;
    int e = 0;
    while (e < 254 && std::ldexp(1.0, e - 127) < static_cast<double>(r)) ++e;
    ASSERT_EQ(e8m0_round_up(r), e) << r;
  }
}

TEST(E8m0, ValueAndInverse) {
  for (int e = 0; e < 255; ++e) {
    EXPECT_EQ(static_cast<double>(e8m0_value(static_cast<u8>(e))), std::ldexp(1.0, e - 127));
    EXPECT_EQ(static_cast<double>(e8m0_inverse(static_cast<u8>(e))), std::ldexp(1.0, 127 - e));
  }
  EXPECT_TRUE(std::isnan(e8m0_value(255)));
  EXPECT_EQ(std::bit_cast<u32>(e8m0_inverse(255)), 0x7fff'ffffU);
}

// ---- matrices -----------------------------------------------------------------------------------

struct Quantized {
  Bytes data;
  /// Compact, padded; the padding has a value of its own.
  Bytes scales;
  MxExtents compact;
};

Quantized quantized(const MxFormat& format, const std::vector<float>& values, u8 padding = 0xa5) {
  Quantized result;
  result.compact = mx_compact_extents(format);
  result.data.resize(values.size());
  result.scales.assign(static_cast<std::size_t>(result.compact.rows * result.compact.cols), padding);
  mx_quantize_host(format, values.data(), Dtype::F32, result.data.data(), result.scales.data(), result.compact.cols);
  return result;
}

std::vector<float> random_values(i64 count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const int scale = static_cast<int>(random() % 40) - 20;
    value = std::ldexp(static_cast<float>(static_cast<int>(random() % 20001) - 10000), scale);
  }
  return values;
}

/// Indices of the elements of block (s, t) of the scales.
std::vector<std::size_t> block_elements(const MxFormat& format, i64 s, i64 t) {
  std::vector<std::size_t> elements;
  for (i64 i = 0; i < 32; ++i)
    elements.push_back(static_cast<std::size_t>(format.axis == MxAxis::Row ? s * format.cols + t * 32 + i
                                                                           : (s * 32 + i) * format.cols + t));
  return elements;
}

TEST(Mxfp8, EveryBlockByTheFormula) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (const MxFormat format : {MxFormat{3, 96, MxAxis::Row, element},
                                  {64, 5, MxAxis::Column, element},
                                  {32, 32, MxAxis::Row, element},
                                  {160, 33, MxAxis::Column, element},
                                  {1, 32, MxAxis::Row, element}}) {
      const std::vector<float> values = random_values(format.rows * format.cols, 7);
      const Quantized q = quantized(format, values);
      const MxExtents scales = mx_scale_extents(format);
      for (i64 s = 0; s < scales.rows; ++s)
        for (i64 t = 0; t < scales.cols; ++t) {
          const auto elements = block_elements(format, s, t);
          float most = 0;
          for (const std::size_t i : elements) most = std::max(most, std::fabs(values[i]));
          const float inverse_max = element == Dtype::F8_E4M3 ? from_bits(0x3b12'4925) : 1.0F / 57344;
          const u8 e = e8m0_round_up(most * inverse_max);
          ASSERT_EQ(q.scales[static_cast<std::size_t>(s * q.compact.cols + t)], e);
          for (const std::size_t i : elements) {
            const double scaled = std::ldexp(static_cast<double>(values[i]), 127 - e);
            ASSERT_LE(std::fabs(scaled), formula(max_code(element), element));
            ASSERT_EQ(q.data[i], nearest(static_cast<float>(scaled), element));
          }
        }
      // Padding is the caller's.
      for (i64 s = 0; s < q.compact.rows; ++s)
        for (i64 t = 0; t < q.compact.cols; ++t)
          if (s >= scales.rows || t >= scales.cols) {
            ASSERT_EQ(q.scales[static_cast<std::size_t>(s * q.compact.cols + t)], 0xa5);
          }
    }
}

Quantized one_block(std::vector<float> values, Dtype element = Dtype::F8_E4M3) {
  values.resize(32);
  return quantized({1, 32, MxAxis::Row, element}, values);
}

float worth(const Quantized& block, std::size_t i, Dtype element = Dtype::F8_E4M3) {
  std::vector<float> values(32);
  mx_dequantize_host({1, 32, MxAxis::Row, element}, block.data.data(), block.scales.data(), 4, values.data(),
                     Dtype::F32);
  return values[i];
}

TEST(Mxfp8, BlocksOfSpecialValues) {
  const Quantized zeros = one_block({0.0F, -0.0F});
  EXPECT_EQ(zeros.scales[0], 0);
  EXPECT_EQ(zeros.data[0], 0);
  EXPECT_EQ(zeros.data[1], 0x80);
  EXPECT_TRUE(std::signbit(worth(zeros, 1)));

  const Quantized nan = one_block({kNan, 448.0F, -1.0F});
  EXPECT_EQ(nan.scales[0], 127) << "a NaN does not count for the scale";
  EXPECT_EQ(nan.data[0], 0x7f);
  EXPECT_EQ(worth(nan, 1), 448.0F);
  EXPECT_EQ(worth(nan, 2), -1.0F);
  EXPECT_TRUE(std::isnan(worth(nan, 0)));
  EXPECT_EQ(one_block(std::vector<float>(32, kNan)).scales[0], 0);

  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2}) {
    const Quantized infinite = one_block({kInfinity, -kInfinity, 3.0F, 3e38F}, element);
    EXPECT_EQ(infinite.scales[0], 0xfe);
    EXPECT_EQ(worth(infinite, 0, element), kInfinity);
    EXPECT_EQ(worth(infinite, 1, element), -kInfinity);
    EXPECT_EQ(worth(infinite, 2, element), 0.0F);
  }

  const Quantized subnormal = one_block({from_bits(1), from_bits(0x40'0000), -from_bits(0x7f'ffff)});
  EXPECT_EQ(subnormal.scales[0], 0);
  EXPECT_EQ(subnormal.data[0], 0);
  EXPECT_EQ(worth(subnormal, 1), from_bits(0x40'0000));
  EXPECT_EQ(worth(subnormal, 2), -from_bits(0x80'0000));

  // The largest element lands at or below the largest code: 449 needs the next power of two.
  EXPECT_EQ(one_block({448.0F}).scales[0], 127);
  EXPECT_EQ(one_block({448.0F}).data[0], 0x7e);
  EXPECT_EQ(one_block({449.0F}).scales[0], 128);
  EXPECT_EQ(one_block({449.0F}).data[0], 0x76);
}

TEST(Mxfp8, HalfPrecisionGivesTheBitsOfTheirFp32) {
  const MxFormat format{2048, 32, MxAxis::Row, Dtype::F8_E4M3};
  std::vector<u16> stored(65536);
  std::iota(stored.begin(), stored.end(), u16{0});
  std::vector<float> wide(stored.size());
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = from_bf16(stored[i]);
  const Quantized expected = quantized(format, wide);
  Quantized found = expected;
  std::ranges::fill(found.data, u8{0});
  mx_quantize_host(format, stored.data(), Dtype::BF16, found.data.data(), found.scales.data(), 4);
  EXPECT_EQ(found.data, expected.data);
  EXPECT_EQ(found.scales, expected.scales);
  // fp16: 1.5, -2^-24, 65504.
  const std::vector<u16> halves{0x3e00, 0x8001, 0x7bff};
  std::vector<u16> block(halves);
  block.resize(32);
  const Quantized want = one_block({1.5F, -0x1p-24F, 65504.0F});
  Bytes data(32), scales(1);
  mx_quantize_host({1, 32, MxAxis::Row, Dtype::F8_E4M3}, block.data(), Dtype::F16, data.data(), scales.data(), 1);
  EXPECT_EQ(data, want.data);
  EXPECT_EQ(scales[0], want.scales[0]);
}

/// All codes under all scales: which of them bf16 and fp32 do not hold, and what they get instead.
TEST(Mxfp8, DequantizesEveryCodeUnderEveryScale) {
  for (const Dtype element : {Dtype::F8_E4M3, Dtype::F8_E5M2})
    for (int e = 0; e < 256; ++e) {
      const MxFormat format{8, 32, MxAxis::Row, element};
      Bytes codes(256), scales(8, static_cast<u8>(e));
      std::iota(codes.begin(), codes.end(), u8{0});
      std::vector<float> wide(256);
      std::vector<u16> narrow(256);
      const auto wide_fault = mx_dequantize_host(format, codes.data(), scales.data(), 1, wide.data(), Dtype::F32);
      const auto fault = mx_dequantize_host(format, codes.data(), scales.data(), 1, narrow.data(), Dtype::BF16);
      const int least = element == Dtype::F8_E4M3 ? 3 : 10;
      const int most = element == Dtype::F8_E4M3 ? 246 : 239;
      EXPECT_EQ(wide_fault.has_value(), e > most && e < 255) << e;
      EXPECT_EQ(fault.has_value(), (e < least || e > most) && e < 255) << e;
      std::optional<i64> first;
      for (int i = 0; i < 256; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (e == 255 || is_nan_code(codes[at], element)) {
          ASSERT_EQ(std::bit_cast<u32>(wide[at]), 0x7fc0'0000U);
          ASSERT_EQ(narrow[at], 0x7fc0);
        } else if (is_infinite_code(codes[at], element)) {
          ASSERT_EQ(wide[at], i < 128 ? kInfinity : -kInfinity);
        } else {
          const double value = std::ldexp(formula(codes[at], element), e - 127);
          ASSERT_EQ(wide[at], static_cast<float>(value)) << i << " " << e;
          if (!first && static_cast<double>(from_bf16(narrow[at])) != value) first = i;
        }
      }
      if (e < 255) {
        EXPECT_EQ(fault, first) << e;
      }
    }
}

TEST(Mxfp8, QuantizingWhatWasDequantizedChangesNothing) {
  for (const MxFormat format :
       {MxFormat{64, 96, MxAxis::Row, Dtype::F8_E4M3}, {64, 96, MxAxis::Column, Dtype::F8_E5M2}}) {
    const Quantized first = quantized(format, random_values(64 * 96, 3));
    std::vector<float> values(64 * 96);
    EXPECT_EQ(mx_dequantize_host(format, first.data.data(), first.scales.data(), first.compact.cols, values.data(),
                                 Dtype::F32),
              std::nullopt);
    const Quantized second = quantized(format, values);
    std::vector<float> again(values.size());
    mx_dequantize_host(format, second.data.data(), second.scales.data(), second.compact.cols, again.data(), Dtype::F32);
    EXPECT_EQ(again, values);
  }
}

TEST(Mxfp8, ShapesAndRefusals) {
  const MxFormat row{130, 160, MxAxis::Row, Dtype::F8_E4M3};
  EXPECT_EQ(mx_scale_extents(row), (MxExtents{130, 5}));
  EXPECT_EQ(mx_compact_extents(row), (MxExtents{256, 8}));
  const MxFormat column{160, 130, MxAxis::Column, Dtype::F8_E4M3};
  EXPECT_EQ(mx_scale_extents(column), (MxExtents{5, 130}));
  EXPECT_EQ(mx_compact_extents(column), (MxExtents{8, 256}));
  EXPECT_EQ(mx_compact_extents({128, 128, MxAxis::Row, Dtype::F8_E4M3}), (MxExtents{128, 4}));
  for (const MxFormat format : {MxFormat{32, 33, MxAxis::Row, Dtype::F8_E4M3},
                                {33, 32, MxAxis::Column, Dtype::F8_E4M3},
                                {32, 32, MxAxis::Row, Dtype::U8},
                                {-32, 32, MxAxis::Row, Dtype::F8_E4M3}})
    EXPECT_EQ(slug_of([&] { mx_compact_extents(format); }), "usage");
  const i64 large = i64{1} << 40;
  EXPECT_EQ(slug_of([&] { mx_scale_extents({large, large, MxAxis::Row, Dtype::F8_E4M3}); }), "shape-overflow");
  Bytes data(32), scales(4);
  const MxFormat block{1, 32, MxAxis::Row, Dtype::F8_E4M3};
  EXPECT_EQ(slug_of([&] { mx_quantize_host(block, data.data(), Dtype::I32, data.data(), scales.data(), 4); }), "usage");
  EXPECT_EQ(slug_of([&] { mx_dequantize_host(block, data.data(), scales.data(), 4, data.data(), Dtype::F16); }),
            "usage");
}

// ---- swizzling ----------------------------------------------------------------------------------

Bytes counted(i64 count) {
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<u8>(1 + i * 131 % 251);
  return bytes;
}

/// (tiles, tiles, 32, 4, 4): of each tile of 128 x 4, first the rows modulo 32, then rows by 32, then blocks.
TEST(Mxfp8Swizzle, IsTheViewOfTiles) {
  for (const MxAxis axis : {MxAxis::Row, MxAxis::Column})
    for (const auto& [rows, cols] : {std::pair<i64, i64>{128, 128}, {256, 384}, {160, 96}, {32, 288}, {416, 32}}) {
      const MxFormat format{rows, cols, axis, Dtype::F8_E4M3};
      const MxExtents compact = mx_compact_extents(format);
      const MxExtents stored = mx_scale_extents(format);
      const Bytes scales = counted(compact.rows * compact.cols);
      Bytes swizzled(scales.size(), 0xee);
      mx_swizzle_host(format, scales.data(), swizzled.data());
      const bool by_row = axis == MxAxis::Row;
      const i64 outer = by_row ? compact.rows : compact.cols;
      const i64 inner = by_row ? compact.cols : compact.rows;
      std::size_t at = 0;
      for (i64 tile = 0; tile < outer / 128; ++tile)
        for (i64 tile_x = 0; tile_x < inner / 4; ++tile_x)
          for (i64 r = 0; r < 32; ++r)
            for (i64 group = 0; group < 4; ++group)
              for (i64 j = 0; j < 4; ++j) {
                const i64 i = tile * 128 + group * 32 + r;
                const i64 block = tile_x * 4 + j;
                const i64 row = by_row ? i : block;
                const i64 col = by_row ? block : i;
                const bool inside = row < stored.rows && col < stored.cols;
                ASSERT_EQ(swizzled[at++], inside ? scales[static_cast<std::size_t>(row * compact.cols + col)] : u8{0});
              }
      Bytes back(scales.size(), 0xee);
      mx_unswizzle_host(format, swizzled.data(), back.data());
      for (i64 r = 0; r < compact.rows; ++r)
        for (i64 c = 0; c < compact.cols; ++c) {
          const auto i = static_cast<std::size_t>(r * compact.cols + c);
          ASSERT_EQ(back[i], r < stored.rows && c < stored.cols ? scales[i] : u8{0});
        }
    }
}

// ---- interleaving -------------------------------------------------------------------------------

/// Rows of `width` elements in the order interleaved:k.
template <typename T>
std::vector<T> interleaved_rows(const std::vector<T>& values, i64 rows, i64 k, i64 step) {
  std::vector<T> out(values.size());
  for (i64 p = 0; p < rows; ++p) {
    const i64 from = p / k % 2 * (rows / 2) + p / (2 * k) * k + p % k;
    std::copy_n(values.begin() + from * step, step, out.begin() + p * step);
  }
  return out;
}

struct Interleaved {
  Quantized of_interleaved;
  Quantized then_interleaved;
};

/// Both orders of quantizing and interleaving; the scales' block of rows is `scale_k`.
Interleaved both_ways(MxAxis axis, i64 rows, i64 cols, i64 k, i64 scale_rows, i64 scale_k, unsigned seed) {
  const MxFormat format{rows, cols, axis, Dtype::F8_E4M3};
  const std::vector<float> values = random_values(rows * cols, seed);
  Interleaved result{quantized(format, interleaved_rows(values, rows, k, cols)), quantized(format, values)};
  Quantized& q = result.then_interleaved;
  q.data = interleaved_rows(q.data, rows, k, cols);
  Bytes meaningful(q.scales.begin(), q.scales.begin() + scale_rows * q.compact.cols);
  meaningful = interleaved_rows(meaningful, scale_rows, scale_k, q.compact.cols);
  std::ranges::copy(meaningful, q.scales.begin());
  return result;
}

bool same(const Interleaved& both) {
  return both.of_interleaved.data == both.then_interleaved.data &&
         both.of_interleaved.scales == both.then_interleaved.scales;
}

TEST(Mxfp8Interleave, CommutesWithQuantizingWhereBlocksStayWhole) {
  std::mt19937 random(11);
  for (int n = 0; n < 60; ++n) {
    const i64 k = 32 * (1 + static_cast<i64>(random() % 3));
    const i64 blocks = 1 + static_cast<i64>(random() % 4);
    const i64 rows = 2 * k * blocks;
    const i64 cols = 32 * (1 + static_cast<i64>(random() % 5));
    const auto seed = static_cast<unsigned>(n);
    EXPECT_TRUE(same(both_ways(MxAxis::Row, rows, cols, k, rows, k, seed))) << rows << " " << cols << " " << k;
    EXPECT_TRUE(same(both_ways(MxAxis::Column, rows, cols, k, rows / 32, k / 32, seed)))
        << rows << " " << cols << " " << k;
  }
}

TEST(Mxfp8Interleave, RowBlocksMoveWithAnyK) {
  for (const i64 k : {1, 2, 8, 12, 24})
    EXPECT_TRUE(same(both_ways(MxAxis::Row, 48 * k, 64, k, 48 * k, k, static_cast<unsigned>(k)))) << k;
}

/// With K = 8 a block of 32 rows holds gate and up: no order of the scales of gates and ups fits.
TEST(Mxfp8Interleave, ColumnBlocksDoNotCommuteWithSmallK) {
  const MxFormat format{128, 32, MxAxis::Column, Dtype::F8_E4M3};
  std::vector<float> values(128 * 32);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i < values.size() / 2 ? 1.0F : 1024.0F;
  const Quantized whole = quantized(format, values);
  const Quantized mixed = quantized(format, interleaved_rows(values, 128, 8, 32));
  EXPECT_NE(interleaved_rows(whole.data, 128, 8, 32), mixed.data);
  Bytes whole_scales(whole.scales.begin(), whole.scales.begin() + 4 * 128);
  Bytes mixed_scales(mixed.scales.begin(), mixed.scales.begin() + 4 * 128);
  std::ranges::sort(whole_scales);
  std::ranges::sort(mixed_scales);
  EXPECT_NE(whole_scales, mixed_scales);
}

}  // namespace
}  // namespace glu_ckpt
