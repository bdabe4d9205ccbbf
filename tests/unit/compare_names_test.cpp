#include "core/compare_names.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace glu_ckpt {
namespace {

bool is_less(const std::string& a, const std::string& b) {
  return std::pair(natural_key(a), a) < std::pair(natural_key(b), b);
}

TEST(NaturalOrder, CountsAsPeopleDo) {
  const std::vector<std::string> sorted{"",           "a",          "experts.0",   "experts.2", "experts.2.w",
                                        "experts.10", "experts.99", "experts.100", "weight9",   "weight10.a",
                                        "weight10.b"};
  std::vector<std::string> names = sorted;
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(names.begin(), names.end(), random);
    std::sort(names.begin(), names.end(), is_less);
    EXPECT_EQ(names, sorted);
  }
}

TEST(NaturalOrder, NumbersStandWhereDigitsDo) {
  EXPECT_TRUE(is_less("a-", "a5"));
  EXPECT_TRUE(is_less("a5", "aa"));
  EXPECT_TRUE(is_less("a5", "a\xff"));
  EXPECT_TRUE(is_less("a", "a0"));
  EXPECT_TRUE(is_less("a9.b", "a10"));
}

TEST(NaturalOrder, LeadingZerosCountForNothingUntilAllElseIsEqual) {
  EXPECT_EQ(natural_key("a007b"), natural_key("a7b"));
  EXPECT_TRUE(is_less("a007", "a8"));
  EXPECT_TRUE(is_less("a01b", "a1b"));
  EXPECT_TRUE(is_less("a1a", "a01b"));
}

TEST(NaturalOrder, NumbersOfAnyLength) {
  EXPECT_TRUE(is_less("a18446744073709551616", "a18446744073709551617"));
  for (const std::size_t digits : {1u, 9u, 254u, 255u, 256u, 1000u}) {
    const std::string number = "a" + std::string(digits, '7');
    EXPECT_TRUE(is_less(number, number + "0")) << digits;
    EXPECT_TRUE(is_less(number, "a" + std::string(digits, '8'))) << digits;
    EXPECT_TRUE(is_less("a" + std::string(digits, '6') + "x", number)) << digits;
  }
}

}  // namespace
}  // namespace glu_ckpt
