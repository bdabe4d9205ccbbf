#include "format/json_offset.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <random>

namespace glu_ckpt {
namespace {

i64 fault_at(std::string_view text, std::size_t depth = 8) {
  return json_fault_offset(text, JsonDocument(text, depth).fault(), depth);
}

bool in_number_or_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.'; }

/// Where the number or word begins that a wrong byte at `at` spoils, or `at`: right after a word nothing is spoilt.
std::size_t token_begin(std::string_view text, std::size_t at) {
  const bool after_word = at > 0 && std::isalpha(static_cast<unsigned char>(text[at - 1])) != 0;
  if (after_word && !in_number_or_word(text[at])) return at;
  while (at > 0 && in_number_or_word(text[at - 1])) --at;
  return at;
}

/// Every byte of the text made a wrong one in turn. Its strings end with a blank, so that no quote follows a letter.
TEST(JsonFaultOffset, FindsTheWrongByteWhereverItIs) {
  const std::string text = R"({"a ":[1,-2.5e3,true,null,"x\n\u00e9 "],"b ":{"c ":{},"d ":[]},"e ":false})";
  ASSERT_EQ(JsonDocument(text, 8).fault(), JsonFault::None);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool quote = text[i] == '"';
    if (quote && !in_string) in_string = true;
    // An escape is wrong as a whole.
    const std::size_t escape = in_string ? text.rfind('\\', i) : std::string::npos;
    const bool escaped = escape != std::string::npos && i - escape < (text[escape + 1] == 'u' ? 6 : 2);
    const std::size_t expected = escaped ? escape : in_string ? i : token_begin(text, i);
    if (quote && i > 0 && text[i - 1] == ' ') in_string = false;
    std::string broken = text;
    broken[i] = '\x01';
    EXPECT_EQ(fault_at(broken), static_cast<i64>(expected)) << i << ": " << text.substr(0, i);
  }
}

TEST(JsonFaultOffset, ACutTextEndsTooEarlyAtItsEnd) {
  const std::string text = R"({"a":[1,{"b":"c\"d"}],"e":[true]})";
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    const std::string cut = text.substr(0, bytes);
    const bool in_word = cut.find("[t") != std::string::npos && cut.find("[true") == std::string::npos;
    const bool in_escape = cut.ends_with('\\');
    const std::size_t expected = in_word ? cut.find('t') : in_escape ? bytes - 1 : bytes;
    EXPECT_EQ(fault_at(cut), static_cast<i64>(expected)) << cut;
  }
}

TEST(JsonFaultOffset, OfEachKind) {
  EXPECT_EQ(fault_at("[[[1]]]", 3), 2);
  EXPECT_EQ(fault_at(R"([{"a":[ ],"b":[ 0 ]}])", 3), 14);
  EXPECT_EQ(fault_at("[\"\xc3\xa9\xf0\x9f\x98\x80\", \"\xff\"]"), 12);
  EXPECT_EQ(fault_at("[\"\xed\xa0\x80\"]"), 2);
  EXPECT_EQ(fault_at("[1,18446744073709551615,18446744073709551616]"), 24);
  EXPECT_EQ(fault_at("[-9223372036854775808,-9223372036854775809]"), 22);
  EXPECT_EQ(fault_at("[1e308,1e400]"), 7);
  EXPECT_EQ(fault_at("[0,01]"), 3);
  EXPECT_EQ(fault_at("[1.]"), 1);
  EXPECT_EQ(fault_at("[1,2,]"), 5);
  EXPECT_EQ(fault_at(R"({"a":1,})"), 7);
  EXPECT_EQ(fault_at(R"({"a" 1})"), 5);
  EXPECT_EQ(fault_at("{} {}"), 3);
  EXPECT_EQ(fault_at("[1}"), 2);
  EXPECT_EQ(fault_at(R"(["\ud83d\ude00","\ud83dx"])"), 17);
}

/// A value whose members, items and itself are numbered in the order they are written.
class NumberedText {
 public:
  explicit NumberedText(unsigned seed) : random_(seed) { value(0); }

  struct Part {
    std::vector<std::size_t> steps;
    i64 offset;
  };
  std::string text;
  std::vector<Part> parts;

 private:
  std::size_t pick(std::size_t below) { return random_() % below; }
  void blank() { text.append(pick(3), ' '); }

  void value(int depth) {
    blank();
    switch (depth < 3 ? pick(4) : 3) {
      case 0: return container('{', '}', depth);
      case 1:
      case 2: return container('[', ']', depth);
      default: break;
    }
    const char* const leaves[] = {"-1.5e3", "true", "null", R"("{[,:\"\\")", "\"\"", R"("]}\u0022")"};
    text += leaves[pick(6)];
  }

  void container(char open, char close, int depth) {
    text += open;
    const std::size_t count = pick(5);
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) text += ',';
      blank();
      steps_.push_back(i);
      parts.push_back({steps_, static_cast<i64>(text.size())});
      if (open == '{') {
        text += R"("a\\\"}{ ")";
        blank();
        text += ':';
        value(depth + 1);
      } else {
        const auto part = parts.size() - 1;
        const std::size_t before = text.size();
        value(depth + 1);
        parts[part].offset = static_cast<i64>(text.find_first_not_of(' ', before));
      }
      blank();
      steps_.pop_back();
    }
    text += close;
  }

  std::mt19937 random_;
  std::vector<std::size_t> steps_;
};

i64 offset_of(std::string_view text, const std::vector<std::size_t>& steps) {
  switch (steps.size()) {
    case 1: return json_offset(text, {steps[0]});
    case 2: return json_offset(text, {steps[0], steps[1]});
    default: return json_offset(text, {steps[0], steps[1], steps[2]});
  }
}

TEST(JsonOffset, FindsEveryMemberAndItem) {
  std::size_t parts = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    const NumberedText made(seed);
    ASSERT_EQ(JsonDocument(made.text, 8).fault(), JsonFault::None) << made.text;
    ASSERT_EQ(fault_at(made.text), static_cast<i64>(made.text.size())) << made.text;
    for (const NumberedText::Part& part : made.parts)
      ASSERT_EQ(offset_of(made.text, part.steps), part.offset) << made.text << " depth " << part.steps.size();
    parts += made.parts.size();
  }
  EXPECT_GT(parts, 1000u);
}

TEST(JsonOffset, WhatIsNotThereIsAtTheEnd) {
  EXPECT_EQ(json_offset("  [1]", {}), 2);
  EXPECT_EQ(json_offset("[1]", {1}), 3);
  EXPECT_EQ(json_offset("[1]", {0, 0}), 3);
  EXPECT_EQ(json_offset("7", {0}), 1);
  EXPECT_EQ(json_offset("", {0}), 0);
}

}  // namespace
}  // namespace glu_ckpt
