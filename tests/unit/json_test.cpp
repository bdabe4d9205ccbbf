#include "core/json.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <limits>
#include <random>
#include <vector>

namespace glu_ckpt {
namespace {

using Kind = JsonFault::Kind;

std::optional<Kind> fault_of(std::string_view text, std::size_t depth = 8) {
  const JsonDocument document(text, depth);
  return document.fault() ? std::optional(document.fault()->kind) : std::nullopt;
}

/// -1 where there is no fault.
i64 fault_at(std::string_view text, std::size_t depth = 8) {
  const JsonDocument document(text, depth);
  return document.fault() ? document.fault()->offset : -1;
}

TEST(JsonFault, Kinds) {
  EXPECT_EQ(fault_of("{}"), std::nullopt);
  EXPECT_EQ(fault_of(""), Kind::Syntax);
  EXPECT_EQ(fault_of(std::string_view()), Kind::Syntax);
  EXPECT_EQ(fault_of("{\"a\":}"), Kind::Syntax);
  EXPECT_EQ(fault_of("{} {}"), Kind::Syntax);
  EXPECT_EQ(fault_of("tru"), Kind::Syntax);
  EXPECT_EQ(fault_of("\"\xff\""), Kind::Utf8);
  EXPECT_EQ(fault_of("[[[1]]]", 3), Kind::Depth);
  EXPECT_EQ(fault_of("[[[]]]", 3), std::nullopt);
  // A text that was cut off nests no deeper than it should.
  EXPECT_EQ(fault_of("[[[[[[ ", 3), Kind::Syntax);
  EXPECT_EQ(fault_of("[[[[]]]] \n", 3), Kind::Depth);
  for (const char* text : {"[18446744073709551616]", "[-9223372036854775809]", "[1e400]", "[01]", "[-]", "[1.]", "[1e]",
                           "[.5]", "[1.5x]", "[1\"\"]"})
    EXPECT_EQ(fault_of(text), std::string_view(text) == "[.5]" ? Kind::Syntax : Kind::Number) << text;
}

TEST(JsonFault, SaysWhatWasExpected) {
  const auto message = [](std::string_view text) { return JsonDocument(text, 3).fault()->message; };
  EXPECT_EQ(message("{"), "expected a key in quotes, but the text ends");
  EXPECT_EQ(message("[1 2]"), "expected ',' or ']'");
  EXPECT_EQ(message("[\"\n\"]"), "expected no control character in a string");
  EXPECT_EQ(message("[[[[0]]]]"), "nests deeper than 3 levels");
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
TEST(JsonFault, FindsTheWrongByteWhereverItIs) {
  const std::string text = R"({"a ":[1,-2.5e3,true,null,"x\n\u00e9 "],"b ":{"c ":{},"d ":[]},"e ":false})";
  ASSERT_FALSE(JsonDocument(text, 8).fault());
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

TEST(JsonFault, ACutTextEndsTooEarlyAtItsEnd) {
  const std::string text = R"({"a":[1,{"b":"c\"d"}],"e":[true]})";
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    const std::string cut = text.substr(0, bytes);
    const bool in_word = cut.find("[t") != std::string::npos && cut.find("[true") == std::string::npos;
    const bool in_escape = cut.ends_with('\\');
    const std::size_t expected = in_word ? cut.find('t') : in_escape ? bytes - 1 : bytes;
    EXPECT_EQ(fault_at(cut), static_cast<i64>(expected)) << cut;
  }
}

TEST(JsonFault, PositionOfEachKind) {
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
  EXPECT_EQ(fault_at(R"(["\ud83d\u0041"])"), 2);
  EXPECT_EQ(fault_at(R"(["a\ude00"])"), 3);
  EXPECT_EQ(fault_at(R"(["\u00g0"])"), 2);
  EXPECT_EQ(fault_at(std::string_view("[1]\0", 4)), 3);
  EXPECT_EQ(fault_at(std::string_view("[\0]", 3)), 1);
  EXPECT_EQ(fault_at("[truex]"), 5);
}

TEST(JsonValue, GetsWhatFits) {
  const JsonDocument document(R"([true,7,-7,18446744073709551615,1.5e1,"x",null,[],{}])", 8);
  ASSERT_FALSE(document.fault());
  ASSERT_EQ(document.root().size(), 9u);
  std::string kinds, bools, integers, naturals, numbers, strings;
  for (const JsonValue item : document.root().items()) {
    kinds += static_cast<char>('0' + static_cast<int>(item.kind()));
    bools += item.get<bool>() ? 'x' : '-';
    integers += item.get<i64>() ? 'x' : '-';
    naturals += item.get<u64>() ? 'x' : '-';
    numbers += item.get<double>() ? 'x' : '-';
    strings += item.get<std::string_view>() ? 'x' : '-';
    EXPECT_EQ(item.size(), 0u);
  }
  EXPECT_EQ(kinds, "122345067");
  EXPECT_EQ(bools, "x--------");
  EXPECT_EQ(integers, "-xx------");
  EXPECT_EQ(naturals, "-x-x-----");
  EXPECT_EQ(numbers, "-xxxx----");
  EXPECT_EQ(strings, "-----x---");
}

TEST(JsonValue, NumbersAreExact) {
  const auto number = [](std::string_view text) { return JsonDocument(text, 8).root().get<double>(); };
  const auto whole = [](std::string_view text) { return JsonDocument(text, 8).root().get<i64>(); };
  EXPECT_EQ(whole("-9223372036854775808"), std::numeric_limits<i64>::min());
  EXPECT_EQ(whole("9223372036854775807"), std::numeric_limits<i64>::max());
  EXPECT_EQ(whole(" -0 "), 0);
  EXPECT_EQ(JsonDocument("18446744073709551615", 8).root().get<u64>(), std::numeric_limits<u64>::max());
  EXPECT_EQ(number("0.1"), 0.1);
  EXPECT_EQ(number("-2.5E-3"), -2.5e-3);
  EXPECT_EQ(number("1e+2"), 100);
}

TEST(JsonValue, StringsAreUnescaped) {
  const JsonDocument document(R"({"\u0061\"\\\/":"\b\f\n\r\t","b":"\u00e9\u20AC\ud83d\ude00z","c":"\u0000"})", 8);
  ASSERT_FALSE(document.fault());
  EXPECT_EQ(document.root().find<std::string_view>("a\"\\/"), "\b\f\n\r\t");
  EXPECT_EQ(document.root().find<std::string_view>("b"), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
  EXPECT_EQ(document.root().find<std::string_view>("c"), std::string_view("\0", 1));
}

TEST(JsonValue, AKeyThatIsThereTwiceIsTwoMembersAndTheLastIsFound) {
  const JsonDocument document(R"({"a":{"a":1},"b":[2],"a":3})", 8);
  ASSERT_FALSE(document.fault());
  std::string keys;
  for (const auto& [key, value] : document.root().members()) keys += key;
  EXPECT_EQ(keys, "aba");
  EXPECT_EQ(document.root().find<i64>("a"), 3);
  EXPECT_EQ(document.root().find<i64>("b"), std::nullopt);
  EXPECT_FALSE(document.root().find("c"));
  EXPECT_FALSE(document.root().find("a")->find("a"));
}

TEST(JsonDocument, MayBeMoved) {
  JsonDocument document(R"({"a":"x\n"})", 8);
  const JsonValue root = document.root();
  const JsonDocument moved = std::move(document);
  EXPECT_EQ(root.find<std::string_view>("a"), "x\n");
  EXPECT_EQ(moved.root().find<std::string_view>("a"), "x\n");
}

/// A random value, with the positions of all keys and items in the order of the text.
class PlacedText {
 public:
  explicit PlacedText(unsigned seed) : random_(seed) { value(0); }

  std::string text;
  std::vector<i64> offsets;

 private:
  std::size_t pick(std::size_t below) { return random_() % below; }
  void blank() { text.append(pick(3), ' '); }

  void value(int depth) {
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
      offsets.push_back(std::ssize(text));
      if (open == '{') {
        text += R"("a\\\"}{ ")";
        blank();
        text += ':';
        blank();
        value(depth + 1);
      } else {
        value(depth + 1);
      }
      blank();
    }
    text += close;
  }

  std::mt19937 random_;
};

void list_offsets(const JsonValue& value, std::vector<i64>& offsets) {
  const auto list = [&](const JsonValue& below) {
    offsets.push_back(below.offset());
    list_offsets(below, offsets);
  };
  for (const JsonValue item : value.items()) list(item);
  for (const auto& [key, member] : value.members()) list(member);
}

TEST(JsonValue, KnowsWhereItIs) {
  std::size_t listed = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    const PlacedText made(seed);
    const JsonDocument document(made.text, 8);
    ASSERT_FALSE(document.fault()) << made.text;
    std::vector<i64> offsets;
    list_offsets(document.root(), offsets);
    ASSERT_EQ(offsets, made.offsets) << made.text;
    listed += offsets.size();
  }
  EXPECT_GT(listed, 1000u);
  EXPECT_EQ(JsonDocument("  [1]", 8).root().offset(), 2);
}

TEST(JsonString, WritesUtf8AlwaysAndOnly) {
  EXPECT_EQ(json_string("\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82"), "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\"");
  // Alone, cut off, too long for what it says, a surrogate.
  EXPECT_EQ(json_string("a\xff"
                        "b"),
            "\"a\\ufffdb\"");
  EXPECT_EQ(json_string("\xe2\x82"), "\"\\ufffd\\ufffd\"");
  EXPECT_EQ(json_string("\xc0\x80"), "\"\\ufffd\\ufffd\"");
  EXPECT_EQ(json_string("\xed\xa0\x80\xc3\xa9"), "\"\\ufffd\\ufffd\\ufffd\xc3\xa9\"");
}

TEST(JsonString, EscapesOnlyWhatItMust) {
  EXPECT_EQ(json_string("a"), "\"a\"");
  EXPECT_EQ(json_string("\"\\/"), "\"\\\"\\\\/\"");
  EXPECT_EQ(json_string("\b\f\n\r\t"), "\"\\b\\f\\n\\r\\t\"");
  EXPECT_EQ(json_string(std::string_view("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\x7f\"");
  EXPECT_EQ(json_string("\xc3\xa9"), "\"\xc3\xa9\"");
}

TEST(JsonWriter, OneLine) {
  JsonWriter writer;
  writer.begin_object().field("a", 1).field("b", "x").field("c", true).field("d", 1.5);
  writer.key("e").begin_array().value(1).null().end_array();
  writer.key("f").begin_object().end_object();
  writer.end_object();
  EXPECT_EQ(writer.text(), R"({"a":1,"b":"x","c":true,"d":1.5,"e":[1,null],"f":{}})");
}

TEST(JsonWriter, Indented) {
  JsonWriter writer(2);
  writer.begin_object().key("a").begin_array().value(1).value(2).end_array().key("b").begin_array().end_array();
  writer.end_object();
  EXPECT_EQ(writer.text(), "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}");
}

TEST(JsonWriter, WhatJsonHasNoWordForIsNull) {
  JsonWriter writer;
  writer.begin_array().value(std::numeric_limits<double>::quiet_NaN()).end_array();
  EXPECT_EQ(writer.text(), "[null]");
}

}  // namespace
}  // namespace glu_ckpt
