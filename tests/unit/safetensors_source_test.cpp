#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "format/safetensors_header.hpp"
#include "glu_ckpt/error.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";

/// A shard of U8 vectors filled with the first letter of their names.
std::string shard(const std::vector<std::string>& names, i64 bytes = 4,
                  const std::map<std::string, std::string>& metadata = {}) {
  std::vector<OutputTensor> tensors;
  std::string data;
  for (const std::string& name : names) {
    tensors.push_back({name, Dtype::U8, {bytes}, bytes, 0, static_cast<i64>(data.size())});
    data += std::string(static_cast<std::size_t>(bytes), name[0]);
  }
  return print_header(tensors, metadata) + data;
}

class SourceTest : public testing::Test {
 protected:
  SourceTest() {
    std::string pattern = (fs::path(testing::TempDir()) / "source_test_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~SourceTest() override { fs::remove_all(dir_); }

  void put(const fs::path& name, const std::string& text) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << text;
  }
  std::string open_slug(const fs::path& name = "") const {
    return slug_of([&] { open_source(dir_ / name); });
  }

  fs::path dir_;
};

std::string text_of(const Source& source, std::size_t tensor) {
  std::string text(static_cast<std::size_t>(source.inventory().tensors[tensor].bytes), '\0');
  source.read(tensor, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::vector<std::string> names_of(const std::vector<ExtraFile>& files) {
  std::vector<std::string> names;
  for (const ExtraFile& file : files) names.push_back(file.name);
  return names;
}

TEST_F(SourceTest, ReadsOneFile) {
  put("m.safetensors", shard({"b", "a"}, 4, {{"format", "pt"}, {"glu_ckpt.glu", "split"}}));
  put("config.json", R"({"model_type":"m"})");
  put("glu_ckpt.json", R"({"glu":"contiguous"})");  // describes the directory, not the file
  const auto source = open_source(dir_ / "m.safetensors");
  EXPECT_EQ(source->inventory().files, std::vector<std::string>{"m.safetensors"});
  ASSERT_EQ(source->inventory().tensors.size(), 2u);
  EXPECT_EQ(text_of(*source, 0), "bbbb");
  EXPECT_EQ(text_of(*source, 1), "aaaa");
  EXPECT_EQ(source->hints().model_type, "m");
  EXPECT_EQ(source->record().at("glu"), "split");
  EXPECT_EQ(source->metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(source->file_bytes(), static_cast<i64>(fs::file_size(dir_ / "m.safetensors")));
  EXPECT_TRUE(source->extra_files().empty());
  EXPECT_EQ(source->path(), dir_ / "m.safetensors");
}

TEST_F(SourceTest, ReadsRangesAndRefusesOthers) {
  put("m.safetensors", shard({"a", "b"}));
  const auto source = open_source(dir_);
  std::array<std::byte, 2> two{};
  source->read(1, 2, two);
  EXPECT_EQ(static_cast<char>(two[1]), 'b');
  source->read(1, 4, {});
  EXPECT_EQ(slug_of([&] { source->read(1, 3, two); }), "io");
  EXPECT_EQ(slug_of([&] { source->read(1, -1, two); }), "io");
}

TEST_F(SourceTest, ReadsShardsOfAnIndex) {
  put("1.safetensors", shard({"a", "c"}, 4, {{"k", "first"}}));
  put("2.safetensors", shard({"b"}, 4, {{"k", "second"}, {"l", "x"}}));
  put("unlisted.safetensors", shard({"a"}));
  put(kIndex, R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"}})");
  const auto source = open_source(dir_);
  EXPECT_EQ(source->inventory().files, (std::vector<std::string>{"1.safetensors", "2.safetensors"}));
  ASSERT_EQ(source->inventory().tensors.size(), 3u);
  EXPECT_EQ(source->inventory().tensors[2].name, "b");
  EXPECT_EQ(source->inventory().tensors[2].file, 1u);
  EXPECT_EQ(text_of(*source, 2), "bbbb");
  EXPECT_EQ(source->metadata().at("k"), "first");
  EXPECT_EQ(source->metadata().at("l"), "x");
}

TEST_F(SourceTest, FindsVariantIndexes) {
  put("model.fp16-00001-of-00001.safetensors", shard({"a"}));
  put("model.safetensors.index.fp16.json", R"({"weight_map":{"a":"model.fp16-00001-of-00001.safetensors"}})");
  EXPECT_EQ(open_source(dir_)->inventory().tensors.size(), 1u);
  put("other.safetensors.index.json", "{}");
  EXPECT_EQ(open_slug(), "not-supported");  // which of the two?
}

TEST_F(SourceTest, ChecksTheIndexBothWays) {
  put("1.safetensors", shard({"a"}));
  put("2.safetensors", shard({"b"}));
  const auto index_slug = [&](const std::string& map) {
    put(kIndex, R"({"weight_map":)" + map + "}");
    return open_slug();
  };
  EXPECT_EQ(index_slug(R"({"a":"1.safetensors","b":"2.safetensors"})"), "none");
  EXPECT_EQ(index_slug(R"({"a":"1.safetensors","b":"3.safetensors"})"), "index-missing-shard");
  EXPECT_EQ(index_slug(R"({"a":"1.safetensors","b":"1.safetensors"})"), "index-stale");
  EXPECT_EQ(index_slug(R"({"0":"1.safetensors","a":"1.safetensors","b":"2.safetensors"})"), "index-stale");
  EXPECT_EQ(index_slug(R"({"a":"1.safetensors","b":"2.safetensors","z":"2.safetensors"})"), "index-stale");
  put("1.safetensors", shard({"a", "c"}));
  EXPECT_EQ(index_slug(R"({"a":"1.safetensors","b":"2.safetensors"})"), "index-incomplete");
  put("1.safetensors", shard({"a", "A"}));
  EXPECT_EQ(index_slug(R"({"a":"1.safetensors","b":"2.safetensors"})"), "index-incomplete");
  put("1.safetensors", shard({"a", "b"}));
  EXPECT_EQ(index_slug(R"({"a":"1.safetensors","b":"2.safetensors"})"), "duplicate-key");
}

TEST_F(SourceTest, PrefersASingleFileToAnIndexWithoutShards) {
  put("model.safetensors", shard({"a", "b"}));
  put(kIndex, R"({"weight_map":{"a":"1.safetensors"}})");
  EXPECT_EQ(open_source(dir_)->inventory().files, std::vector<std::string>{"model.safetensors"});
  put("1.safetensors", shard({"a"}));
  EXPECT_EQ(open_source(dir_)->inventory().files, std::vector<std::string>{"1.safetensors"});
}

TEST_F(SourceTest, ReadsADirectoryWithoutIndexInNameOrder) {
  put("b.safetensors", shard({"x"}));
  put("a.safetensors", shard({"y"}));
  EXPECT_EQ(open_source(dir_)->inventory().files, (std::vector<std::string>{"a.safetensors", "b.safetensors"}));
  put("c.safetensors", shard({"x"}));
  EXPECT_EQ(open_slug(), "duplicate-key");
}

TEST_F(SourceTest, FollowsTheSymlinksOfAHuggingFaceSnapshot) {
  put("blobs/0a", shard({"a"}));
  put("blobs/0b", R"({"num_hidden_layers":2})");
  put("blobs/0c", "tokens");
  fs::create_directories(dir_ / "snapshots/main");
  fs::create_symlink("../../blobs/0a", dir_ / "snapshots/main/model.safetensors");
  fs::create_symlink("../../blobs/0b", dir_ / "snapshots/main/config.json");
  fs::create_symlink("../../blobs/0c", dir_ / "snapshots/main/tokenizer.json");
  const auto source = open_source(dir_ / "snapshots/main");
  EXPECT_EQ(text_of(*source, 0), "aaaa");
  EXPECT_EQ(source->hints().num_hidden_layers, 2);
  EXPECT_EQ(names_of(source->extra_files()), (std::vector<std::string>{"config.json", "tokenizer.json"}));
  fs::remove(dir_ / "blobs/0a");
  EXPECT_EQ(open_slug("snapshots/main"), "not-found");
}

TEST_F(SourceTest, ListsExtraFiles) {
  put("model.safetensors", shard({"a"}));
  put("config.json", "{}");
  put("code/model.py", "");
  put("code/deep/er.txt", "");
  put(".gitattributes", "");
  put("code/.hidden", "");
  for (const char* skipped : {"glu_ckpt.json", kIndex, ".cache/x", "code/.git/x", ".x.safetensors",
                              "original/x.safetensors", "original/params.json", "out.partial/x"})
    put(skipped, "{}");
  fs::remove(dir_ / kIndex);
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  fs::create_directory_symlink("..", dir_ / "code/cycle");
  fs::create_symlink("nowhere", dir_ / "dangling");
  const auto source = open_source(dir_);
  EXPECT_EQ(
      names_of(source->extra_files()),
      (std::vector<std::string>{".gitattributes", "code/.hidden", "code/deep/er.txt", "code/model.py", "config.json"}));
  EXPECT_EQ(source->left_out(),
            (std::vector<std::string>{".cache", ".x.safetensors", "code/.git", "code/cycle", "fifo", "original/"}));
  EXPECT_EQ(source->info().dangling, std::vector<std::string>{"dangling"});
}

TEST_F(SourceTest, MergesRecords) {
  put("model.safetensors", shard({"a"}, 4, {{"glu_ckpt.glu", "split"}}));
  put("glu_ckpt.json", R"({"glu":"split","naming":"n"})");
  EXPECT_EQ(open_source(dir_)->record(), (Record{{"glu", "split"}, {"naming", "n"}}));
  put("glu_ckpt.json", R"({"glu":"contiguous"})");
  EXPECT_EQ(open_slug(), "record-contradicts");
}

TEST_F(SourceTest, RefusesWhatIsNoCheckpoint) {
  EXPECT_EQ(open_slug("none"), "not-found");
  EXPECT_EQ(open_slug(), "not-supported");
  put("model.gguf", "");
  try {
    open_source(dir_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.gguf"), std::string::npos) << error.what();
  }
  EXPECT_EQ(open_slug("model.gguf"), "not-supported");
  ASSERT_EQ(::mkfifo((dir_ / "f.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(open_slug("f.safetensors"), "not-supported");
  EXPECT_EQ(open_slug(), "not-supported");
  EXPECT_EQ(slug_of([] { open_source("/dev/zero"); }), "not-supported");
}

TEST_F(SourceTest, NoticesAFileThatBecameShorter) {
  put("m.safetensors", shard({"a"}, 100));
  const auto source = open_source(dir_);
  fs::resize_file(dir_ / "m.safetensors", fs::file_size(dir_ / "m.safetensors") - 1);
  EXPECT_EQ(slug_of([&] { text_of(*source, 0); }), "source-changed");
}

TEST_F(SourceTest, ReadsFromManyThreads) {
  std::vector<std::string> names;
  for (char c = 'a'; c <= 'z'; ++c) names.emplace_back(1, c);
  put("m.safetensors", shard(names, 1000));
  const auto source = open_source(dir_);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < names.size(); ++i)
    threads.emplace_back([&, i] { EXPECT_EQ(text_of(*source, i), std::string(1000, names[i][0])); });
}

}  // namespace
}  // namespace glu_ckpt
