#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

#include "format/record_file.hpp"
#include "format/safetensors_header.hpp"
#include "format/safetensors_index.hpp"
#include "format/staged_output.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/error.hpp"
#include "io/file.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

std::string get(const fs::path& path) { return read_small_file(path, 1 << 20, ErrorCode::Io); }

/// Byte i of a tensor is a function of both, so a byte in the wrong place shows.
std::vector<std::byte> content_of(std::size_t tensor, i64 bytes) {
  std::vector<std::byte> content(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(tensor * 31 + i * 7);
  return content;
}

class SafetensorsOutput : public testing::Test {
 protected:
  SafetensorsOutput() {
    std::string pattern = (fs::path(testing::TempDir()) / "sink_test_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~SafetensorsOutput() override { fs::remove_all(dir_); }

  OutputOptions options(const std::string& name) const {
    OutputOptions options;
    options.path = dir_ / name;
    options.record = {{"digest", "0000"}, {"glu", "split"}};
    return options;
  }

  fs::path dir_;
};

const std::vector<OutputTensor> kOneShard = {{"a", Dtype::BF16, {3, 2}, 12, 0, 0}, {"b", Dtype::U8, {}, 1, 0, 12}};
const std::vector<OutputTensor> kTwoShards = {{"z", Dtype::F32, {5}, 20, 0, 0},
                                              {"empty", Dtype::F32, {0}, 0, 0, 20},
                                              {"a", Dtype::F4, {3, 2}, 3, 1, 0},
                                              {"q\"", Dtype::I64, {2}, 16, 1, 3}};
const Record kFinal = {{"digest", "1234"}, {"glu", "split"}};

void write_all(Sink& sink, const std::vector<OutputTensor>& tensors) {
  for (std::size_t i = tensors.size(); i-- > 0;) {
    const auto content = content_of(i, tensors[i].bytes);
    const auto half = content.size() / 2;
    sink.write(i, static_cast<i64>(half), std::span(content).subspan(half));
    sink.write(i, 0, std::span(content).first(half));
  }
}

void expect_same(const Source& source, const std::vector<OutputTensor>& tensors) {
  ASSERT_EQ(source.inventory().tensors.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorRef& tensor = source.inventory().tensors[i];
    EXPECT_EQ(tensor.name, tensors[i].name);
    EXPECT_EQ(tensor.dtype, tensors[i].dtype);
    EXPECT_EQ(tensor.shape, tensors[i].shape);
    std::vector<std::byte> read(static_cast<std::size_t>(tensor.bytes));
    source.read(i, 0, read);
    EXPECT_EQ(read, content_of(i, tensors[i].bytes)) << tensor.name;
  }
}

TEST(ShardName, CountsFromOne) {
  EXPECT_EQ(shard_name(0, 1), "model.safetensors");
  EXPECT_EQ(shard_name(0, 2), "model-00001-of-00002.safetensors");
  EXPECT_EQ(shard_name(122, 123456), "model-00123-of-123456.safetensors");
}

TEST_F(SafetensorsOutput, WritesADirectoryWithOneShard) {
  const auto sink = create_output(options("out"), kOneShard);
  write_all(*sink, kOneShard);
  sink->finish(kFinal);
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  expect_same(*open_source(sink->staged_path()), kOneShard);
  sink->commit();
  const auto source = open_source(dir_ / "out");
  expect_same(*source, kOneShard);
  EXPECT_EQ(source->record(), kFinal);
  EXPECT_EQ(source->metadata().at("format"), "pt");
  EXPECT_FALSE(fs::exists(dir_ / "out" / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
}

TEST_F(SafetensorsOutput, WritesShardsAndTheirIndex) {
  const auto sink = create_output(options("out"), kTwoShards);
  write_all(*sink, kTwoShards);
  sink->finish(kFinal);
  sink->commit();
  expect_same(*open_source(dir_ / "out"), kTwoShards);
  const std::string text = get(dir_ / "out" / "model.safetensors.index.json");
  EXPECT_NE(text.find("\"total_size\": 39"), std::string::npos) << text;
  EXPECT_NE(text.find("\"total_parameters\": 13"), std::string::npos) << text;
  EXPECT_EQ(parse_index(text, "x").entries.size(), 4u);
}

i64 data_start(const fs::path& path) {
  const std::string text = get(path);
  u64 length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  return kHeaderPrefixBytes + static_cast<i64>(length);
}

TEST_F(SafetensorsOutput, BeginsTheDataOfEachShardAtItsPhase) {
  OutputOptions with = options("out");
  with.data_phases = {1016, 0};
  const auto sink = create_output(with, kTwoShards);
  write_all(*sink, kTwoShards);
  sink->finish(kFinal);
  sink->commit();
  expect_same(*open_source(dir_ / "out"), kTwoShards);
  EXPECT_EQ(data_start(dir_ / "out" / "model-00001-of-00002.safetensors") % kDataPhaseBytes, 1016);
  EXPECT_EQ(data_start(dir_ / "out" / "model-00002-of-00002.safetensors") % kDataPhaseBytes, 0);
}

TEST_F(SafetensorsOutput, StampsAFileInPhase) {
  OutputOptions with = options("m.safetensors");
  with.data_phases = {2056};
  const auto sink = create_output(with, kOneShard);
  write_all(*sink, kOneShard);
  sink->finish(kFinal);
  sink->commit();
  write_record(dir_ / "m.safetensors", {{"shared_glu", std::string(50, 's')}});
  expect_same(*open_source(dir_ / "m.safetensors"), kOneShard);
  EXPECT_EQ(data_start(dir_ / "m.safetensors") % kDataPhaseBytes, 2056);
}

TEST_F(SafetensorsOutput, RecordsEveryFileWithItsHash) {
  std::ofstream(dir_ / "config.json") << "{}";
  OutputOptions with = options("out");
  with.extra_files = {{"sub/config.json", dir_ / "config.json"}};
  with.options = {{"--glu", "split"}};
  const auto sink = create_output(with, kTwoShards);
  write_all(*sink, kTwoShards);
  sink->finish(kFinal);
  sink->commit();
  const auto content = parse_record_json(get(dir_ / "out" / "glu_ckpt.json"), "x");
  EXPECT_EQ(content.record, kFinal);
  EXPECT_EQ(content.options, with.options);
  ASSERT_EQ(content.files.size(), 4u);
  i64 bytes = static_cast<i64>(fs::file_size(dir_ / "out" / "glu_ckpt.json"));
  for (const FileRecord& file : content.files) {
    EXPECT_EQ(file, record_of_file(File::open_read(dir_ / "out" / file.name), file.name, {file.header_bytes}));
    bytes += file.bytes;
  }
  EXPECT_EQ(sink->bytes_written(), bytes);
}

TEST_F(SafetensorsOutput, ExtraFilesNeverReplaceItsOwn) {
  std::ofstream(dir_ / "x") << "foreign";
  OutputOptions with = options("out");
  for (const char* name : {"model.safetensors", "glu_ckpt.json", "notes.txt"})
    with.extra_files.push_back({name, dir_ / "x"});
  const auto sink = create_output(with, kOneShard);
  write_all(*sink, kOneShard);
  sink->finish(kFinal);
  sink->commit();
  expect_same(*open_source(dir_ / "out"), kOneShard);
  EXPECT_EQ(get(dir_ / "out" / "notes.txt"), "foreign");
}

TEST_F(SafetensorsOutput, WritesOneFile) {
  const auto sink = create_output(options("m.safetensors"), kOneShard);
  write_all(*sink, kOneShard);
  sink->finish(kFinal);
  EXPECT_FALSE(fs::exists(dir_ / "m.safetensors"));
  expect_same(*open_source(sink->staged_path()), kOneShard);
  sink->commit();
  expect_same(*open_source(dir_ / "m.safetensors"), kOneShard);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 1);
}

TEST_F(SafetensorsOutput, OneFileCannotHoldTwoShards) {
  EXPECT_EQ(slug_of([&] { create_output(options("m.safetensors"), kTwoShards); }), "usage");
}

TEST_F(SafetensorsOutput, WithoutTensorsIsAValidCheckpoint) {
  const auto sink = create_output(options("out"), {});
  sink->finish(kFinal);
  sink->commit();
  EXPECT_TRUE(open_source(dir_ / "out")->inventory().tensors.empty());
}

TEST_F(SafetensorsOutput, SameInputGivesTheSameBytes) {
  for (const char* name : {"1", "2"}) {
    const auto sink = create_output(options(name), kOneShard);
    write_all(*sink, kOneShard);
    sink->finish(kFinal);
    sink->commit();
  }
  EXPECT_EQ(get(dir_ / "1" / "model.safetensors"), get(dir_ / "2" / "model.safetensors"));
  EXPECT_EQ(get(dir_ / "1" / "glu_ckpt.json"), get(dir_ / "2" / "glu_ckpt.json"));
}

TEST_F(SafetensorsOutput, LeavesNothingWithoutCommit) {
  { create_output(options("out"), kOneShard)->finish(kFinal); }
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(SafetensorsOutput, OverwritesOnlyWhenAsked) {
  fs::create_directory(dir_ / "out");
  std::ofstream(dir_ / "out" / "old") << "x";
  EXPECT_EQ(slug_of([&] { create_output(options("out"), kOneShard); }), "output-exists");
  OutputOptions over = options("out");
  over.overwrite = true;
  const auto sink = create_output(over, kOneShard);
  write_all(*sink, kOneShard);
  sink->finish(kFinal);
  EXPECT_TRUE(fs::exists(dir_ / "out" / "old"));
  sink->commit();
  EXPECT_FALSE(fs::exists(dir_ / "out" / "old"));
  expect_same(*open_source(dir_ / "out"), kOneShard);
}

TEST_F(SafetensorsOutput, RefusesARecordOfAnotherLength) {
  const auto sink = create_output(options("out"), kOneShard);
  EXPECT_EQ(slug_of([&] { sink->finish({{"digest", std::string(100, '1')}, {"glu", "split"}}); }), "record-invalid");
}

TEST_F(SafetensorsOutput, RefusesWritesOutsideATensor) {
  const auto sink = create_output(options("out"), kOneShard);
  std::array<std::byte, 2> two{};
  EXPECT_EQ(slug_of([&] { sink->write(1, 0, two); }), "io");
  EXPECT_EQ(slug_of([&] { sink->write(0, -1, two); }), "io");
}

TEST_F(SafetensorsOutput, RefusesOutputsThatDoNotTile) {
  EXPECT_EQ(slug_of([&] { create_output(options("out"), {{"a", Dtype::U8, {1}, 1, 0, 1}}); }), "plan-unproved");
  EXPECT_EQ(slug_of([&] {
              create_output(options("out"), {{"a", Dtype::U8, {1}, 1, 1, 0}, {"b", Dtype::U8, {1}, 1, 0, 0}});
            }),
            "plan-unproved");
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(SafetensorsOutput, StampsADirectory) {
  const auto sink = create_output(options("out"), kOneShard);
  write_all(*sink, kOneShard);
  sink->finish(kFinal);
  sink->commit();
  const auto before = parse_record_json(get(dir_ / "out" / "glu_ckpt.json"), "x");
  const std::string shard = get(dir_ / "out" / "model.safetensors");
  write_record(dir_ / "out", {{"shared_glu", "interleaved:8"}});
  const auto after = parse_record_json(get(dir_ / "out" / "glu_ckpt.json"), "x");
  EXPECT_EQ(after.record, (Record{{"digest", "1234"}, {"glu", "split"}, {"shared_glu", "interleaved:8"}}));
  EXPECT_EQ(after.files, before.files);
  EXPECT_EQ(get(dir_ / "out" / "model.safetensors"), shard);
  EXPECT_EQ(open_source(dir_ / "out")->record().at("shared_glu"), "interleaved:8");
}

TEST_F(SafetensorsOutput, StampsAFile) {
  const auto path = dir_ / "m.safetensors";
  const auto sink = create_output(options("m.safetensors"), kOneShard);
  write_all(*sink, kOneShard);
  sink->finish(kFinal);
  sink->commit();
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  write_record(path, {{"glu", "contiguous"}, {"shared_glu", std::string(50, 's')}});
  const auto source = open_source(path);
  expect_same(*source, kOneShard);
  EXPECT_EQ(source->record().at("glu"), "contiguous");
  EXPECT_EQ(source->record().at("digest"), "1234");
  EXPECT_EQ(source->metadata().at("format"), "pt");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 1);
  EXPECT_EQ(slug_of([&] { write_record(dir_ / "none", {}); }), "not-found");
}

}  // namespace
}  // namespace glu_ckpt
