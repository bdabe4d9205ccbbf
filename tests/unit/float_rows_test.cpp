#include "core/float_rows.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>

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

}  // namespace
}  // namespace glu_ckpt
