#include "format/record_file.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {
namespace {

std::string parse_slug(std::string_view text) {
  try {
    parse_record_json(text, "glu_ckpt.json");
  } catch (const Error& error) {
    return std::string(slug(error.code()));
  }
  return "none";
}

TEST(RecordJson, PrintsOneLinePerFile) {
  const RecordFile content{
      {{"glu", "split"}, {"version", "1"}}, {{"--glu", "split"}}, {{"a", 3, "00"}, {"b", 4, "11"}}};
  EXPECT_EQ(print_record_json(content), R"({
  "glu": "split",
  "version": "1",
  "options": {
    "--glu": "split"
  },
  "files": [
    {"name": "a", "bytes": 3, "xxh3_128": "00"},
    {"name": "b", "bytes": 4, "xxh3_128": "11"}
  ]
}
)");
}

TEST(RecordJson, ParsesBack) {
  const RecordFile content{{{"glu", "a\"\n"}}, {{"-o", "\xc3\xa9"}}, {{"s/m.safetensors", i64{1} << 40, "ab"}}};
  const auto back = parse_record_json(print_record_json(content), "x");
  EXPECT_EQ(back.record, content.record);
  EXPECT_EQ(back.options, content.options);
  EXPECT_EQ(back.files, content.files);
  const auto empty = parse_record_json(print_record_json({}), "x");
  EXPECT_TRUE(empty.record.empty() && empty.options.empty() && empty.files.empty());
}

/// Of files that were cloned nobody knows it.
TEST(RecordJson, FilesNeedNoHash) {
  const RecordFile content{{}, {}, {{"a", 3, ""}, {"b", 4, "11"}}};
  const std::string text = print_record_json(content);
  EXPECT_NE(text.find(R"({"name": "a", "bytes": 3},)"), std::string::npos) << text;
  EXPECT_EQ(parse_record_json(text, "x").files, content.files);
  EXPECT_EQ(parse_slug(R"({"files":[{"name":"a","bytes":3,"xxh3_128":null}]})"), "record-invalid");
}

TEST(RecordJson, IgnoresWhatALaterVersionMayAdd) {
  EXPECT_EQ(parse_record_json(R"({"new":[1],"newer":"x","glu":"split"})", "x").record,
            (Record{{"glu", "split"}, {"newer", "x"}}));
}

TEST(RecordJson, RefusesWhatIsNoRecord) {
  EXPECT_EQ(parse_slug("{}"), "none");
  for (const char* text :
       {"", "[]", R"({"glu":1})", R"({"version":null})", R"({"options":[]})", R"({"options":{"a":1}})",
        R"({"files":{}})", R"({"files":[1]})", R"({"files":[{"name":"a"}]})", R"({"glu":"a","glu":"b"})"})
    EXPECT_EQ(parse_slug(text), "record-invalid") << text;
}

TEST(RecordMetadata, TakenOutAndPutBack) {
  std::map<std::string, std::string> metadata{
      {"format", "pt"}, {"glu_ckpt.glu", "split"}, {"glu_ckptx", "no"}, {"z", ""}};
  const auto before = metadata;
  const Record record = take_record(metadata);
  EXPECT_EQ(record, (Record{{"glu", "split"}}));
  EXPECT_EQ(metadata.size(), 3u);
  put_record(metadata, record);
  EXPECT_EQ(metadata, before);
}

TEST(RecordMerger, JoinsWhatAgrees) {
  RecordMerger merger;
  merger.add({{"glu", "split"}, {"version", "1"}}, "a");
  merger.add({{"glu", "split"}, {"naming", "n"}, {"version", "2"}}, "b");
  EXPECT_EQ(merger.merged(), (Record{{"glu", "split"}, {"naming", "n"}, {"version", "2"}}));
}

TEST(RecordMerger, AnAnswerReplacesUnknown) {
  RecordMerger merger;
  merger.add({{"glu", "unknown"}}, "a");
  merger.add({{"glu", "contiguous"}}, "b");
  merger.add({{"glu", "unknown"}}, "c");
  EXPECT_EQ(merger.merged().at("glu"), "contiguous");
}

TEST(RecordMerger, NamesBothFilesOfAContradiction) {
  RecordMerger merger;
  merger.add({{"glu", "contiguous"}}, "a.safetensors");
  try {
    merger.add({{"glu", "interleaved:32"}}, "glu_ckpt.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::RecordContradicts);
    const std::string text = error.what();
    for (const char* part : {"a.safetensors", "glu_ckpt.json", "contiguous", "interleaved:32"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(HashFile, KnownValues) {
  const auto path = std::filesystem::path(testing::TempDir()) / "hash_file_test";
  std::ofstream(path).close();
  const auto empty = hash_file(path, "n");
  EXPECT_EQ(empty.name, "n");
  EXPECT_EQ(empty.bytes, 0);
  EXPECT_EQ(empty.xxh3_128, "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing, from the XXH3 test vectors
  std::ofstream(path) << std::string((3 << 20) + 7, 'x');
  EXPECT_EQ(hash_file(path, "n").bytes, (3 << 20) + 7);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace glu_ckpt
