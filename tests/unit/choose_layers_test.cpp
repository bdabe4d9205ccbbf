#include "verify/choose_layers.hpp"

#include <gtest/gtest.h>

#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using Labels = std::vector<std::string>;
const Labels kLabels{"1", "2", "3", "10", "11", "mtp.0", "talker.2-3"};

TEST(ChooseLayers, ByLabelAndByRange) {
  EXPECT_EQ(choose_layers(kLabels, ""), kLabels);
  EXPECT_EQ(choose_layers(kLabels, "3"), Labels{"3"});
  EXPECT_EQ(choose_layers(kLabels, "2-10"), (Labels{"2", "3", "10"}));
  EXPECT_EQ(choose_layers(kLabels, "0-1"), Labels{"1"});
  EXPECT_EQ(choose_layers(kLabels, "mtp.0,11,1-2,2"), (Labels{"1", "2", "11", "mtp.0"}));
  EXPECT_EQ(choose_layers(kLabels, "talker.2-3"), Labels{"talker.2-3"});
}

TEST(ChooseLayers, RefusesWhatNamesNone) {
  for (const char* const list : {"4", "12-20", "1,4", "mtp", "talker.2", "-1", "1.5", "a-b", "1-", "x"})
    EXPECT_EQ(slug_of([&] { choose_layers(kLabels, list); }), "layer-missing") << list;
  for (const char* const list : {",", "1,", ",1", "1,,2", "3-2"})
    EXPECT_EQ(slug_of([&] { choose_layers(kLabels, list); }), "usage") << list;
}

}  // namespace
}  // namespace glu_ckpt
