/// Patterns find what Python's re.match finds.

#include "quant/match_target.hpp"

#include <gtest/gtest.h>

#include <string>

namespace glu_ckpt {
namespace {

constexpr const char* kModule = "model.layers.12.mlp.experts.7.down_proj";

TEST(MatchTarget, PatternsOfModules) {
  for (const char* const pattern :
       {"", "model", ".*mlp.*", ".*experts\\.\\d+\\.down_proj$", "model\\.layers\\.(3|12)\\..*",
        ".*\\.(gate|up|down)_proj", "model.layers.[0-9]+.mlp.experts.[^a-z]+.down_proj$", "^model",
        "(?:model\\.)?layers|model.*", "mode?l.*?experts", ".*(a*)*b*down", "[\\w.]+$", "model[.]layers[.]1[2-4][.]"})
    EXPECT_EQ(matches_pattern(pattern, kModule), true) << pattern;
  for (const char* const pattern : {"layers", ".*self_attn.*", ".*experts\\.\\d\\d\\.down_proj$",
                                    "model\\.layers\\.(3|1)\\..*", ".*up_proj$", "model$", ".^", "[^m].*", "x*y"})
    EXPECT_EQ(matches_pattern(pattern, kModule), false) << pattern;
}

TEST(MatchTarget, WhatIsNotReadHere) {
  for (const std::string& pattern :
       {std::string("a{2}"), std::string("(?=a)"), std::string("(?P<x>a)"), std::string("a("), std::string("a)"),
        std::string("["), std::string("[z-a]"), std::string("\\"), std::string("\\1"), std::string("\\bmodel"),
        std::string("*a"), std::string("a**"), std::string(257, 'a')})
    EXPECT_EQ(matches_pattern(pattern, kModule), std::nullopt) << pattern;
}

/// A run that tried one way after the other would not end.
TEST(MatchTarget, NoPatternTakesLong) {
  EXPECT_EQ(matches_pattern("(((a*)*)*)*$", std::string(3000, 'a') + "b"), false);
  EXPECT_EQ(matches_pattern("(a|a)*(a|aa)+c", std::string(3000, 'a')), false);
  EXPECT_EQ(matches_pattern(std::string(15, '(') + "a*" + std::string(15, ')') + "$", std::string(100, 'a')), true);
}

/// Each group was once read twice for each one around it: 2^120 times in these.
TEST(MatchTarget, GroupsInsideGroupsAreReadOnce) {
  const std::string nested = std::string(120, '(') + "ab*" + std::string(120, ')');
  EXPECT_EQ(matches_pattern(nested + "c", "abbc"), true);
  EXPECT_EQ(matches_pattern(nested + "c", "abb"), false);
  EXPECT_EQ(matches_pattern(nested.substr(1), "abb"), std::nullopt);
  EXPECT_EQ(matches_pattern(std::string(128, '(') + std::string(128, ')'), "a"), true);
}

TEST(MatchTarget, BracketsInsidePieces) {
  for (const char* const pattern : {"([)])", "(\\))", "([]])", "([^](])", "([a\\])])", "((?:[(|]|\\())?\\)"})
    EXPECT_EQ(matches_pattern(pattern, ")"), pattern[1] != '[' || pattern[2] != ']') << pattern;
  EXPECT_EQ(matches_pattern("([]])*$", "]]"), true);
  for (const char* const pattern : {"([)", "(\\)", "(a))", "([a)", "(()", "a{1}", "(a**)", "(|*)", "[]"})
    EXPECT_EQ(matches_pattern(pattern, ")"), std::nullopt) << pattern;
}

TEST(MatchTarget, NamesAndClasses) {
  EXPECT_EQ(ModuleTarget("a.b").names("a.b"), true);
  EXPECT_EQ(ModuleTarget("a").names("a.b"), false);
  EXPECT_EQ(ModuleTarget("re:a").names("a.b"), true);
  EXPECT_EQ(ModuleTarget("Linear").names("a.b"), false);
}

}  // namespace
}  // namespace glu_ckpt
