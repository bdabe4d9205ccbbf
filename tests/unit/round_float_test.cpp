/// Rounding to bf16 and fp16, against the values themselves: every bf16 and fp16, and the middle between each two.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/float_rows.hpp"

namespace glu_ckpt {
namespace {

using u16 = std::uint16_t;

constexpr u32 kSign = 0x8000;

u32 bits_of(double value) { return std::bit_cast<u32>(static_cast<float>(value)); }

/// One of the two dtypes, by its definition.
struct Narrow {
  u16 (*round)(u32);
  int mantissa_bits;
  int bias;
  u32 infinity;

  /// Of magnitudes up to and including that of `infinity`, where it is what the next value would be.
  double value(u32 magnitude) const {
    const u32 exponent = magnitude >> mantissa_bits;
    const u32 mantissa = magnitude & ((u32{1} << mantissa_bits) - 1);
    const u32 whole = exponent == 0 ? mantissa : mantissa + (u32{1} << mantissa_bits);
    return std::ldexp(whole, static_cast<int>(std::max(exponent, u32{1})) - bias - mantissa_bits);
  }
};

void PrintTo(const Narrow& narrow, std::ostream* out) { *out << "mantissa of " << narrow.mantissa_bits << " bits"; }

const Narrow kBf16{round_to_bf16, 7, 127, 0x7f80};
const Narrow kF16{round_to_f16, 10, 15, 0x7c00};

class RoundFloat : public ::testing::TestWithParam<Narrow> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, RoundFloat, ::testing::Values(kBf16, kF16));

TEST_P(RoundFloat, EveryValueIsItself) {
  const Narrow& narrow = GetParam();
  for (u32 bits = 0; bits <= 0xffff; ++bits) {
    const u32 magnitude = bits & ~kSign;
    if (magnitude >= narrow.infinity) continue;
    const u32 wide = bits_of(narrow.value(magnitude)) | (bits & kSign) << 16;
    ASSERT_EQ(narrow.round(wide), bits) << std::hex << bits;
  }
}

TEST_P(RoundFloat, TheMiddleGoesToTheEvenNeighbour) {
  const Narrow& narrow = GetParam();
  for (u32 low = 0; low < narrow.infinity; ++low)
    for (const u32 sign : {u32{0}, kSign}) {
      // One bit more than the dtype has: exact in fp32. Above the largest value it is where infinity begins.
      const double middle = narrow.value(low) / 2 + narrow.value(low + 1) / 2;
      const u32 wide = bits_of(middle) | sign << 16;
      ASSERT_EQ(std::bit_cast<float>(wide & 0x7fff'ffff), middle);
      ASSERT_EQ(narrow.round(wide), (low % 2 == 0 ? low : low + 1) | sign) << std::hex << low;
      ASSERT_EQ(narrow.round(wide - 1), low | sign) << std::hex << low;
      ASSERT_EQ(narrow.round(wide + 1), (low + 1) | sign) << std::hex << low;
    }
}

TEST_P(RoundFloat, InfiniteTinyAndNotANumber) {
  const Narrow& narrow = GetParam();
  for (const u32 sign : {u32{0}, kSign}) {
    EXPECT_EQ(narrow.round(0x7f80'0000 | sign << 16), narrow.infinity | sign);
    EXPECT_EQ(narrow.round(0x7f7f'ffff | sign << 16), narrow.infinity | sign);
    EXPECT_EQ(narrow.round(sign << 16), sign) << "zeros keep their sign";
    EXPECT_EQ(narrow.round(1 | sign << 16), sign) << "the least subnormal of fp32";
    for (const u32 payload : {1u, 0x1fffu, 0x2000u, 0xffffu, 0x40'0000u, 0x7f'ffffu}) {
      const u32 rounded = narrow.round(0x7f80'0000 | payload | sign << 16);
      EXPECT_GT(rounded & ~kSign, narrow.infinity) << "a NaN stays one, whatever bits it loses: " << payload;
      EXPECT_EQ(rounded & kSign, sign);
    }
  }
}

TEST(RoundFloatBits, EveryBf16GoesThereAndBack) {
  for (u32 bits = 0; bits <= 0xffff; ++bits) {
    const bool nan = (bits & ~kSign) > 0x7f80;
    EXPECT_EQ(round_to_bf16(bits << 16), nan ? bits | 0x0040 : bits);
  }
}

template <typename Bits>
std::vector<std::byte> bytes_of(const std::vector<Bits>& elements) {
  std::vector<std::byte> bytes(elements.size() * sizeof(Bits));
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

TEST(RoundsTo, EachElementCounts) {
  const std::vector<u32> wide{0x3f80'0001, 0xbf80'8000, 0x3f81'8000, 0x7fc0'1234, 0x8000'0000};
  const std::vector<u16> bf16{0x3f80, 0xbf80, 0x3f82, 0xffff, 0x8000};
  EXPECT_TRUE(rounds_to(bytes_of(wide), Dtype::F32, bytes_of(bf16), Dtype::BF16));
  for (std::size_t i = 0; i < bf16.size(); ++i) {
    std::vector<u16> other = bf16;
    other[i] ^= 0x4000;
    EXPECT_FALSE(rounds_to(bytes_of(wide), Dtype::F32, bytes_of(other), Dtype::BF16)) << i;
  }
  EXPECT_FALSE(rounds_to(bytes_of(wide), Dtype::F32, bytes_of(std::vector<u16>{0x3f80}), Dtype::BF16));
  EXPECT_TRUE(rounds_to(bytes_of(std::vector<u32>{0x3f80'1000, 0x3f80'3000}), Dtype::F32,
                        bytes_of(std::vector<u16>{0x3c00, 0x3c02}), Dtype::F16));
  EXPECT_TRUE(rounds_to(bytes_of(wide), Dtype::F32, bytes_of(wide), Dtype::F32));
  EXPECT_FALSE(
      rounds_to(bytes_of(std::vector<u32>{0}), Dtype::F32, bytes_of(std::vector<u32>{0x8000'0000}), Dtype::F32))
      << "zeros of both signs differ";
}

TEST(RoundsTo, WhatDeterminesWhat) {
  for (const Dtype to : {Dtype::BF16, Dtype::F16, Dtype::F32}) {
    EXPECT_TRUE(can_round(Dtype::F32, to));
    EXPECT_TRUE(can_round(to, to));
    EXPECT_EQ(can_round(to, Dtype::F32), to == Dtype::F32);
    for (const Dtype from : {Dtype::U8, Dtype::I16, Dtype::F8_E4M3, Dtype::I32, Dtype::U64})
      EXPECT_FALSE(can_round(from, to) || can_round(to, from)) << dtype_name(from);
  }
  EXPECT_FALSE(can_round(Dtype::BF16, Dtype::F16));
  EXPECT_FALSE(can_round(Dtype::I16, Dtype::I16));
}

}  // namespace
}  // namespace glu_ckpt
