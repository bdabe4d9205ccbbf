#include "core/json.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace glu_ckpt {
namespace {

JsonFault fault_of(std::string_view text, std::size_t depth = 8) { return JsonDocument(text, depth).fault(); }

TEST(JsonDocument, TellsFaultsApart) {
  EXPECT_EQ(fault_of("{}"), JsonFault::None);
  EXPECT_EQ(fault_of(""), JsonFault::Syntax);
  EXPECT_EQ(fault_of("{\"a\":}"), JsonFault::Syntax);
  EXPECT_EQ(fault_of("{} {}"), JsonFault::Syntax);
  EXPECT_EQ(fault_of("\"\xff\""), JsonFault::Utf8);
  EXPECT_EQ(fault_of("[[[1]]]", 3), JsonFault::Depth);
  EXPECT_EQ(fault_of("[18446744073709551616]"), JsonFault::Number);
  EXPECT_EQ(fault_of("[01]"), JsonFault::Number);
}

TEST(JsonDocument, HasWordsForAFault) { EXPECT_FALSE(JsonDocument("{", 8).message().empty()); }

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

TEST(JsonDocument, NoTextIsASyntaxFault) {
  EXPECT_EQ(JsonDocument(std::string_view(), 8).fault(), JsonFault::Syntax);
  EXPECT_EQ(JsonDocument("", 8).fault(), JsonFault::Syntax);
}

}  // namespace
}  // namespace glu_ckpt
