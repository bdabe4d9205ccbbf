#include "format/record_file.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/data_hash.hpp"
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
      {{"glu", "split"}, {"version", "1"}}, {{"--glu", "split"}}, {{"a", 3, 1, "00", "11"}, {"b", 4}}};
  EXPECT_EQ(print_record_json(content), R"({
  "record_xxh3_128": "04a3d2e0865e48733fb652937d32081f",
  "glu": "split",
  "version": "1",
  "options": {
    "--glu": "split"
  },
  "files": [
    {"name": "a", "bytes": 3, "header_bytes": 1, "header_xxh3_128": "00", "data_xxh3_128": "11"},
    {"name": "b", "bytes": 4, "header_bytes": 0}
  ]
}
)");
}

TEST(RecordJson, ParsesBack) {
  const RecordFile content{
      {{"glu", "a\"\n"}}, {{"-o", "\xc3\xa9"}}, {{"s/m.safetensors", i64{1} << 40, 80, "ab", "cd"}}};
  const auto back = parse_record_json(print_record_json(content), "x");
  EXPECT_EQ(back.record, content.record);
  EXPECT_EQ(back.options, content.options);
  EXPECT_EQ(back.files, content.files);
  EXPECT_TRUE(back.metadata.empty());
  const RecordFile with_metadata{content.record, content.options, content.files, {{"note", "\"\n"}, {"glu", "x"}}};
  const auto both = parse_record_json(print_record_json(with_metadata), "x");
  EXPECT_EQ(both.metadata, with_metadata.metadata);
  EXPECT_EQ(both.record, content.record);
  EXPECT_EQ(both.files, content.files);
  EXPECT_EQ(parse_slug(R"({"metadata":{"a":1}})"), "record-invalid");
  const auto empty = parse_record_json(print_record_json({}), "x");
  EXPECT_TRUE(empty.record.empty() && empty.options.empty() && empty.files.empty());
}

/// A bit that flips anywhere, in the name of the checksum too, is seen.
TEST(RecordJson, NoBitOfItChangesUnseen) {
  const RecordFile content{
      {{"hf_experts", "indexed"}, {"version", "1"}}, {{"--glu", "split"}}, {{"a", 3, 1, "00", "11"}}};
  const std::string text = print_record_json(content);
  for (std::size_t i = 0; i + 1 < text.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      EXPECT_EQ(parse_slug(flipped), "record-invalid") << flipped;
    }
  // A reader finds it wherever it stands; white space behind the record is nobody's.
  EXPECT_EQ(parse_slug(text + " \n"), "none");
  EXPECT_EQ(parse_slug(R"({"glu": "split", "record_xxh3_128": "00000000000000000000000000000000"})"), "record-invalid");
  EXPECT_EQ(parse_slug(R"({"glu": "split", "record_xxh3_128": 1})"), "record-invalid");
  // Without it, as earlier versions wrote it.
  const std::size_t line = text.find("  \"record_"), end = text.find('\n', line) + 1;
  EXPECT_EQ(parse_record_json(text.substr(0, line) + text.substr(end), "x").record, content.record);
}

/// Data that were cloned have no checksum, and an earlier version wrote others.
TEST(RecordJson, FilesNeedNoChecksums) {
  const RecordFile content{{}, {}, {{"a", 3, 2, "00", ""}, {"b", 4, 0, "11", "22"}}};
  const std::string text = print_record_json(content);
  EXPECT_NE(text.find(R"({"name": "a", "bytes": 3, "header_bytes": 2, "header_xxh3_128": "00"},)"), std::string::npos)
      << text;
  EXPECT_EQ(parse_record_json(text, "x").files, content.files);
  EXPECT_EQ(parse_record_json(R"({"files":[{"name":"a","bytes":3,"xxh3_128":"00"}]})", "x").files,
            (std::vector<FileRecord>{{"a", 3}}));
  for (const char* fields : {R"("data_xxh3_128":null)", R"("header_xxh3_128":1)", R"("header_bytes":"1")",
                             R"("header_bytes":4)", R"("header_bytes":-1)"})
    EXPECT_EQ(parse_slug(fmt::format(R"({{"files":[{{"name":"a","bytes":3,{}}}]}})", fields)), "record-invalid");
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

TEST(RecordOfFile, KnownValues) {
  // Tests of several builds run at the same time.
  std::string path = (std::filesystem::path(testing::TempDir()) / "record_of_file_XXXXXX").string();
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  // XXH3-128 of nothing is from the XXH3 test vectors; a sum of no blocks is zero.
  const std::string of_nothing = "99aa06d3014798d86001c324468d497f", no_blocks(32, '0');
  EXPECT_EQ(record_of_file(File::open_read(path), "n"), (FileRecord{"n", 0, 0, of_nothing, no_blocks}));
  EXPECT_EQ(record_of_text("", "n"), (FileRecord{"n", 0, 0, of_nothing, no_blocks}));
  // Blocks of 1 MiB and one of 7 bytes behind a header of 13 bytes; any number of threads, every byte is seen once.
  std::string text(13 + (3 << 20) + 7, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + (i >> 8) * 13 + (i >> 16) * 31);
  std::ofstream(path) << text;
  const auto bytes = std::as_bytes(std::span(text));
  const FileRecord expected{"n", std::ssize(text), 13, hex(hash128(bytes.first(13), 0)),
                            hex(hash_data(bytes.subspan(13)))};
  for (const int jobs : {1, 3}) {
    std::atomic<i64> seen{0};
    const auto use = [&](std::span<const std::byte> part, i64 offset) {
      EXPECT_TRUE(std::ranges::equal(part, bytes.subspan(static_cast<std::size_t>(offset), part.size())));
      seen += std::ssize(part);
    };
    EXPECT_EQ(record_of_file(File::open_read(path), "n", {13, jobs, use}), expected);
    EXPECT_EQ(seen, std::ssize(text));
  }
  EXPECT_EQ(record_of_file(File::open_read(path), "n").data_xxh3_128, record_of_text(text, "n").data_xxh3_128);
  // A file that was cut within its header.
  std::filesystem::resize_file(path, 5);
  EXPECT_EQ(record_of_file(File::open_read(path), "n", {13}),
            (FileRecord{"n", 5, 5, hex(hash128(bytes.first(5), 0)), no_blocks}));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace glu_ckpt
