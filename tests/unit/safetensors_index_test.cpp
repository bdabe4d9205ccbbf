#include "format/safetensors_index.hpp"

#include <gtest/gtest.h>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {
namespace {

std::string parse_slug(std::string_view text) {
  try {
    parse_index(text, "x.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.file(), "x.json");
    return std::string(slug(error.code()));
  }
  return "none";
}

std::string shard_slug(const std::string& shard) { return parse_slug(R"({"weight_map":{"a":")" + shard + R"("}})"); }

TEST(ParseIndex, SortsTensorsAndShards) {
  const auto index = parse_index(
      R"({"metadata":{"total_size":7},"weight_map":{"c":"1.safetensors","a":"2.safetensors","b":"1.safetensors"}})",
      "x");
  EXPECT_EQ(index.files, (std::vector<std::string>{"1.safetensors", "2.safetensors"}));
  ASSERT_EQ(index.entries.size(), 3u);
  EXPECT_EQ(index.entries[0].tensor, "a");
  EXPECT_EQ(index.entries[0].file, 1u);
  EXPECT_EQ(index.entries[2].tensor, "c");
  EXPECT_EQ(index.entries[2].file, 0u);
}

TEST(ParseIndex, KnowsWhereEachEntryStands) {
  const std::string text = R"({"metadata":{"weight_map":{"a":"0"}}, "weight_map": {"c":"1", "a":"2","b\"":"1"}})";
  const auto index = parse_index(text, "x");
  ASSERT_EQ(index.entries.size(), 3u);
  EXPECT_EQ(index.entries[0].offset, text.rfind("\"a\""));
  EXPECT_EQ(index.entries[1].offset, text.find("\"b\\"));
  EXPECT_EQ(index.entries[2].offset, text.find("\"c\""));
}

TEST(ParseIndex, NamesATensor) { EXPECT_EQ(parse_slug(R"({"weight_map":{}})"), "index-json"); }

TEST(ParseIndex, RefusesWhatIsNoIndex) {
  EXPECT_EQ(parse_slug(""), "index-json");
  EXPECT_EQ(parse_slug("{"), "index-json");
  EXPECT_EQ(parse_slug("[]"), "index-json");
  EXPECT_EQ(parse_slug("{}"), "index-json");
  EXPECT_EQ(parse_slug(R"({"weight_map":null})"), "index-json");
  EXPECT_EQ(parse_slug(R"({"weight_map":{"a":null}})"), "index-json");
  EXPECT_EQ(parse_slug("{\"weight_map\":{\"\xff\":\"a\"}}"), "index-json");
  EXPECT_EQ(parse_slug(R"({"weight_map":{"a":"1","b":"1","a":"2"}})"), "duplicate-key");
}

TEST(ParseIndex, KeepsShardsInsideTheDirectory) {
  EXPECT_EQ(shard_slug("model.safetensors"), "none");
  EXPECT_EQ(shard_slug("sub/model.safetensors"), "none");
  EXPECT_EQ(shard_slug("a..b.safetensors"), "none");
  EXPECT_EQ(shard_slug("..model.safetensors"), "none");
  for (const char* shard : {"", "..", "../m.safetensors", "a/../../m", "/m.safetensors", "a/..", "sub/", "m\\u0000"})
    EXPECT_EQ(shard_slug(shard), "index-path") << shard;
}

TEST(PrintIndex, LooksLikeTransformers) {
  EXPECT_EQ(print_index({{"b", "2.safetensors"}, {"a", "1.safetensors"}}, 24, 6), R"({
  "metadata": {
    "total_parameters": 6,
    "total_size": 24
  },
  "weight_map": {
    "a": "1.safetensors",
    "b": "2.safetensors"
  }
}
)");
}

TEST(PrintIndex, ParsesBack) {
  const auto index = parse_index(print_index({{"a\"\n", "1"}, {"\xc3\xa9", "2"}}, 1, 1), "x");
  EXPECT_EQ(index.entries[0].tensor, "a\"\n");
  EXPECT_EQ(index.entries[1].tensor, "\xc3\xa9");
}

}  // namespace
}  // namespace glu_ckpt
