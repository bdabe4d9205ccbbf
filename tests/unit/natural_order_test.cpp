#include "core/natural_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace glu_ckpt {
namespace {

TEST(NaturalOrder, CountsAsPeopleDo) {
  const std::vector<std::string> sorted{"",           "a",          "experts.0",   "experts.2", "experts.2.w",
                                        "experts.10", "experts.99", "experts.100", "weight9",   "weight10.a",
                                        "weight10.b"};
  std::vector<std::string> names = sorted;
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(names.begin(), names.end(), random);
    std::sort(names.begin(), names.end(), natural_less);
    EXPECT_EQ(names, sorted);
  }
}

TEST(NaturalOrder, IsAStrictWeakOrder) {
  std::vector<std::string> names{
      "a1", "a01", "a001", "a1b", "a01b", "a", "1", "01", "", "a18446744073709551616", "a18446744073709551617",
      "a2", "a10", "b"};
  for (const auto& a : names) {
    EXPECT_FALSE(natural_less(a, a)) << a;
    for (const auto& b : names) {
      EXPECT_FALSE(natural_less(a, b) && natural_less(b, a)) << a << " " << b;
      if (a != b) {
        EXPECT_TRUE(natural_less(a, b) || natural_less(b, a)) << a << " " << b;
      }
      for (const auto& c : names)
        if (natural_less(a, b) && natural_less(b, c)) {
          EXPECT_TRUE(natural_less(a, c)) << a << " " << b << " " << c;
        }
    }
  }
  EXPECT_TRUE(natural_less("a18446744073709551616", "a18446744073709551617"));
}

}  // namespace
}  // namespace glu_ckpt
