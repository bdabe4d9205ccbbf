#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "format/checkpoint_files.hpp"
#include "format/dcp_metadata.hpp"
#include "format/manifest.hpp"
#include "format/staged_output.hpp"
#include "glu_ckpt/error.hpp"
#include "io/file.hpp"
#include "support/dist_checkpoint.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

std::string get(const fs::path& path) { return read_small_file(path, 1 << 24, ErrorCode::Io); }

/// Byte i of a tensor is a function of both, so a byte in the wrong place shows.
std::vector<std::byte> content_of(std::size_t tensor, i64 bytes) {
  std::vector<std::byte> content(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<std::byte>(tensor * 31 + i * 7 + (i >> 8) * 11 + (i >> 16) * 13);
  return content;
}

class PatternObjects final : public ObjectStore {
 public:
  std::vector<std::byte> read(std::size_t number) const override {
    return content_of(100 + number, number == 0 ? 3 : 5);
  }
};

/// Two objects.
Structure two_objects() {
  const auto store = std::make_shared<PatternObjects>();
  Structure structure;
  structure.objects = {{"common_state/shard_0_1", 3, store, 0}, {"x._extra_state/shard_0_2", 5, store, 1}};
  return structure;
}

class DcpOutput : public testing::Test {
 protected:
  DcpOutput() {
    std::string pattern = (fs::path(testing::TempDir()) / "dcp_output_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~DcpOutput() override { fs::remove_all(dir_); }

  OutputOptions options() const {
    OutputOptions options;
    options.path = dir_ / "out";
    options.structure = structure_;
    options.format = options.source_format.emplace(Format::TorchDist);
    return options;
  }

  fs::path dir_;
  Structure structure_ = two_objects();
};

OutputTensor output(std::string name, Dtype dtype, std::vector<i64> shape, i64 bytes, u32 shard) {
  return {name, dtype, std::move(shape), bytes, shard, 0, name};
}

/// [2, 3, 64, 512] in BF16 has slabs of 64 KiB, [2, 64, 511] smaller ones.
const std::vector<OutputTensor> kTensors = {
    output("stack", Dtype::BF16, {2, 3, 64, 512}, 2 * 3 * 64 * 512 * 2, 0),
    output("small", Dtype::BF16, {2, 64, 511}, 2 * 64 * 511 * 2, 0),
    output("scalar", Dtype::F32, {}, 4, 0),
    output("empty", Dtype::I64, {0, 4, 100000}, 0, 1),
    output("packed", Dtype::F4, {2, 256, 512}, 2 * 256 * 512 / 2, 1),
    output("fp8", Dtype::F8_E4M3, {3, 5}, 15, 1),
};

/// Pieces of an odd length, from the back: they straddle chunks.
void write_all(Sink& sink, const std::vector<OutputTensor>& tensors) {
  constexpr std::size_t kPiece = 100'003;
  for (std::size_t i = tensors.size(); i-- > 0;) {
    const auto content = content_of(i, tensors[i].bytes);
    for (std::size_t end = content.size(); end > 0;) {
      const std::size_t begin = end > kPiece ? end - kPiece : 0;
      sink.write(i, static_cast<i64>(begin), std::span(content).subspan(begin, end - begin));
      end = begin;
    }
  }
}

void save(const OutputOptions& options, const std::vector<OutputTensor>& tensors) {
  const auto sink = create_output(options, tensors);
  write_all(*sink, tensors);
  sink->finish({{"glu", "split"}});
  sink->commit();
}

void expect_same(const Source& source, const std::vector<OutputTensor>& tensors) {
  ASSERT_EQ(source.inventory().tensors.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorRef& tensor = source.inventory().tensors[i];
    EXPECT_EQ(tensor.name, tensors[i].name);
    EXPECT_EQ(tensor.dtype, tensors[i].dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, tensors[i].shape) << tensor.name;
    ASSERT_EQ(tensor.bytes, tensors[i].bytes) << tensor.name;
    const auto content = content_of(i, tensor.bytes);
    std::vector<std::byte> read(content.size());
    source.read(i, 0, read);
    EXPECT_TRUE(read == content) << tensor.name;
    if (read.size() < 4) continue;
    std::vector<std::byte> middle(read.size() / 2 + 1);
    source.read(i, 1, middle);
    EXPECT_TRUE(std::equal(middle.begin(), middle.end(), content.begin() + 1)) << tensor.name;
  }
}

TEST_F(DcpOutput, WhatItWritesReadsBack) {
  save(options(), kTensors);
  const auto source = open_dist(dir_ / "out");
  expect_same(*source, kTensors);
  i64 bytes = 0;
  source->content_check()->run(3, [&](i64 more) { __atomic_add_fetch(&bytes, more, __ATOMIC_RELAXED); });
  EXPECT_EQ(bytes, source->content_check()->bytes());
  EXPECT_EQ(bytes, source->file_bytes());  // items without gaps, none beside them
}

TEST_F(DcpOutput, MatricesOfAStackAreChunks) {
  save(options(), kTensors);
  const DcpMetadata metadata = read_dcp_metadata(get(dir_ / "out" / ".metadata"), ".metadata");
  ASSERT_EQ(metadata.tensors.size(), kTensors.size());
  ASSERT_EQ(metadata.tensors[0].chunks.size(), 6U);
  EXPECT_EQ(metadata.tensors[0].chunks[4].start, (std::vector<i64>{1, 1, 0, 0}));
  EXPECT_EQ(metadata.tensors[0].chunks[4].shape, (std::vector<i64>{1, 1, 64, 512}));
  EXPECT_EQ(metadata.tensors[1].chunks.size(), 1U);
  EXPECT_EQ(metadata.tensors[3].chunks.size(), 1U);
  // torch counts bytes of two values.
  EXPECT_EQ(metadata.tensors[4].shape, (std::vector<i64>{2, 256, 256}));
  EXPECT_EQ(metadata.tensors[4].chunks.size(), 2U);
  EXPECT_EQ(metadata.files, (std::vector<std::string>{"__0_0.distcp", "__0_1.distcp"}));
  EXPECT_FALSE(metadata.has_planner_data);
}

/// Chunks of 1 MiB and more: their data start pages of the file, and zeros stand between the zips.
TEST_F(DcpOutput, LargeChunksStartAtPages) {
  const std::vector<OutputTensor> tensors = {output("odd", Dtype::U8, {77}, 77, 0),
                                             output("stack", Dtype::BF16, {3, 512, 1025}, 3 * 512 * 1025 * 2, 0),
                                             output("last", Dtype::U8, {5}, 5, 0)};
  save(options(), tensors);
  expect_same(*open_dist(dir_ / "out"), tensors);
  const DcpMetadata metadata = read_dcp_metadata(get(dir_ / "out" / ".metadata"), ".metadata");
  const std::string file = get(dir_ / "out" / "__0_0.distcp");
  ASSERT_EQ(metadata.tensors[1].chunks.size(), 3U);
  i64 end = metadata.tensors[0].chunks[0].item.offset + metadata.tensors[0].chunks[0].item.length;
  for (const DcpChunk& chunk : metadata.tensors[1].chunks) {
    const auto content = content_of(1, tensors[1].bytes);
    const auto at = content.begin() + chunk.start[0] * 512 * 1025 * 2;
    const std::string_view bytes(reinterpret_cast<const char*>(&*at), 512 * 1025 * 2);
    const std::size_t data = file.find(bytes, static_cast<std::size_t>(chunk.item.offset));
    EXPECT_EQ(data % 4096, 0U) << data;
    EXPECT_LT(chunk.item.offset - end, 4096);
    const auto gap = file.substr(static_cast<std::size_t>(end), static_cast<std::size_t>(chunk.item.offset - end));
    EXPECT_EQ(gap, std::string(gap.size(), '\0'));
    end = chunk.item.offset + chunk.item.length;
  }
  EXPECT_EQ(metadata.tensors[2].chunks[0].item.offset, end);
}

TEST_F(DcpOutput, ObjectsAreCopied) {
  save(options(), kTensors);
  const auto source = open_dist(dir_ / "out");
  ASSERT_EQ(source->structure().objects.size(), 2U);
  EXPECT_EQ(source->structure().objects[1].name, "x._extra_state/shard_0_2");
  EXPECT_EQ(source->structure().objects[0].read(), content_of(100, 3));
  EXPECT_EQ(source->structure().objects[1].read(), content_of(101, 5));
}

TEST_F(DcpOutput, MetadataJsonIsKeptOrAdded) {
  save(options(), kTensors);
  EXPECT_FALSE(fs::exists(dir_ / "out" / "metadata.json"));  // as the source, a plain one
  OutputOptions next = options();
  next.path = dir_ / "next";
  next.source_format = Format::Safetensors;
  save(next, kTensors);
  EXPECT_EQ(get(dir_ / "next" / "metadata.json"), R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
  structure_.metadata_json = "{\"sharded_backend\": \"own\"}";
  next = options();
  next.path = dir_ / "last";
  save(next, kTensors);
  EXPECT_EQ(get(dir_ / "last" / "metadata.json"), "{\"sharded_backend\": \"own\"}");
}

TEST_F(DcpOutput, IntegrityCoversEveryOtherFile) {
  structure_.has_integrity = true;
  save(options(), kTensors);
  const std::string text = get(dir_ / "out" / "integrity.json");
  EXPECT_TRUE(text.starts_with(R"({"algorithm":"sha256","files":{)")) << text;
  for (const auto& entry : fs::directory_iterator(dir_ / "out")) {
    const std::string name = entry.path().filename().string();
    const std::string line = "\"" + name + "\":\"" + sha256_of_file(entry.path()) + "\"";
    EXPECT_EQ(text.find(line) != std::string::npos, name != "integrity.json") << name;
  }
}

TEST_F(DcpOutput, Sha256OfAFile) {
  std::ofstream(dir_ / "abc") << "abc";
  EXPECT_EQ(sha256_of_file(dir_ / "abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(DcpOutput, IterationsHaveTheTrackerBesideThem) {
  structure_.iteration_dir = "iter_0000100";
  structure_.tracker = "100\n";
  save(options(), kTensors);
  EXPECT_EQ(get(dir_ / "out" / "latest_checkpointed_iteration.txt"), "100\n");
  expect_same(*open_dist(dir_ / "out" / "iter_0000100"), kTensors);
}

TEST_F(DcpOutput, PathsFollowTheNames) {
  structure_.paths = {{"model.a.stack", {{"model", false}, {"a", false}, {"stack", false}}},
                      {"list.0", {{"list", false}, {"0", true}}},
                      {"common_state/shard_0_1", {{"common", false}}}};
  std::vector<OutputTensor> tensors = {output("model.a.new", Dtype::U8, {2}, 2, 0),
                                       output("list.0", Dtype::U8, {1}, 1, 0), output("unknown", Dtype::U8, {1}, 1, 0)};
  tensors[0].from = "model.a.stack";
  save(options(), tensors);
  const auto source = open_dist(dir_ / "out");
  const auto& paths = source->structure().paths;
  EXPECT_EQ(paths.at("model.a.new"), (KeyPath{{"model", false}, {"a", false}, {"new", false}}));
  EXPECT_EQ(paths.at("list.0"), (KeyPath{{"list", false}, {"0", true}}));
  EXPECT_EQ(paths.at("unknown"), (KeyPath{{"unknown", false}}));
  EXPECT_EQ(paths.at("common_state/shard_0_1"), (KeyPath{{"common", false}}));
  EXPECT_EQ(paths.size(), 5U);
}

TEST_F(DcpOutput, RefusesWhatATorchDistCheckpointCannotBe) {
  OutputOptions file = options();
  file.path = dir_ / "out.pt";
  EXPECT_EQ(slug_of([&] { create_output(file, kTensors); }), "usage");
  EXPECT_EQ(slug_of([&] { create_output(options(), {output("f6", Dtype::F6_E2M3, {4}, 3, 0)}); }), "not-exact");
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST_F(DcpOutput, AMissingByteStopsTheEnd) {
  const auto sink = create_output(options(), kTensors);
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const auto content = content_of(i, kTensors[i].bytes - (i == 1 ? 1 : 0));
    sink->write(i, 0, content);
  }
  EXPECT_EQ(slug_of([&] { sink->finish({}); }), "io");
}

}  // namespace
}  // namespace glu_ckpt
