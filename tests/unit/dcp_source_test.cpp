/// Checkpoints that torch 2.15 and Megatron wrote, against the same tensors as safetensors.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>

#include "core/crc32.hpp"
#include "core/parallel.hpp"
#include "format/dcp_metadata.hpp"
#include "format/pickle_graph.hpp"
#include "format/zip_layout.hpp"
#include "glu_ckpt/error.hpp"
#include "io/file_backed.hpp"
#include "support/dist_checkpoint.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

namespace fs = std::filesystem;

fs::path testdata(const std::string& name) { return fs::path(std::getenv("GLU_CKPT_TESTDATA")) / name; }

const TensorRef* find(const Source& source, const std::string& name) {
  const auto& tensors = source.inventory().tensors;
  const auto at = std::ranges::find_if(tensors, [&](const TensorRef& tensor) { return tensor.name == name; });
  return at == tensors.end() ? nullptr : &*at;
}

std::size_t number_of(const Source& source, const TensorRef* tensor) {
  return static_cast<std::size_t>(tensor - source.inventory().tensors.data());
}

std::vector<std::byte> read_all(const Source& source, std::size_t tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(source.inventory().tensors[tensor].bytes));
  source.read(tensor, 0, bytes);
  return bytes;
}

/// The same in reads of an odd length, from the back.
std::vector<std::byte> read_oddly(const Source& source, std::size_t tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(source.inventory().tensors[tensor].bytes));
  constexpr std::size_t kStep = 997;
  for (std::size_t end = bytes.size(); end > 0;) {
    const std::size_t begin = end > kStep ? end - kStep : 0;
    source.read(tensor, static_cast<i64>(begin), std::span(bytes).subspan(begin, end - begin));
    end = begin;
  }
  return bytes;
}

/// Returns how many tensors of `truth` the checkpoint has; those are compared.
std::size_t compare(const Source& source, const Source& truth) {
  std::size_t same = 0;
  for (std::size_t i = 0; i < truth.inventory().tensors.size(); ++i) {
    const TensorRef& want = truth.inventory().tensors[i];
    const TensorRef* have = find(source, want.name);
    if (have == nullptr) continue;
    EXPECT_EQ(have->dtype, want.dtype) << want.name;
    EXPECT_EQ(have->shape, want.shape) << want.name;
    EXPECT_EQ(have->bytes, want.bytes) << want.name;
    const auto bytes = read_all(truth, i);
    EXPECT_EQ(read_all(source, number_of(source, have)), bytes) << want.name;
    EXPECT_EQ(read_oddly(source, number_of(source, have)), bytes) << want.name;
    ++same;
  }
  return same;
}

TEST(DcpSource, ReadsWhatTorchSaved) {
  const auto source = open_dist(testdata("torch/dcp1"));
  const auto truth = open_source(testdata("torch/full.safetensors"));
  EXPECT_EQ(source->format(), Format::TorchDist);
  EXPECT_EQ(source->inventory().tensors.size() + source->structure().objects.size(), 55U);
  EXPECT_EQ(compare(*source, *truth), truth->inventory().tensors.size());
}

TEST(DcpSource, ReadsWhatMegatronSavedFromTwoRanks) {
  const auto source = open_dist(testdata("megatron/ep2/iter_0000100"));
  const auto truth = open_source(testdata("megatron/ep2/truth.safetensors"));
  EXPECT_EQ(compare(*source, *truth), truth->inventory().tensors.size());
  EXPECT_EQ(source->structure().metadata_json.size(), 63U);
  EXPECT_FALSE(source->structure().has_integrity);
}

/// Any zip with a tensor in it.
struct MadeItem {
  std::vector<i64> shape = {2, 3};
  std::vector<i64> strides = {3, 1};
  std::string storage = "BFloat16Storage";
  i64 count = 6;
  i64 stored_bytes = 12;
  std::string byte_order = "little";
  bool with_crcs = true;
  bool is_tensor = true;

  std::string pickle() const {
    PickleGraph graph;
    if (!is_tensor) return write_pickle(graph, graph.add_string("no tensor"));
    const auto tuple = [&](const std::vector<i64>& values) {
      std::vector<PickleRef> items;
      items.reserve(values.size());
      for (const i64 value : values) items.push_back(graph.add_int(value));
      return graph.add_container(PickleKind::Tuple, items);
    };
    const PickleRef id = graph.add_tuple({graph.add_string("storage"), graph.add_global("torch", storage),
                                          graph.add_string("0"), graph.add_string("cpu"), graph.add_int(count)});
    const PickleRef hooks = graph.add_call(graph.add_global("collections", "OrderedDict"), graph.add_tuple({}));
    const PickleRef arguments = graph.add_tuple(
        {graph.add_persistent(id), graph.add_int(0), tuple(shape), tuple(strides), graph.add_bool(false), hooks});
    return write_pickle(graph, graph.add_call(graph.add_global("torch._utils", "_rebuild_tensor_v2"), arguments));
  }

  /// The storage holds the bytes 0, 1, 2 ...
  std::string zip() const {
    std::string storage_text;
    for (i64 i = 0; i < stored_bytes; ++i) storage_text += static_cast<char>(i);
    const std::vector<std::pair<std::string, std::string>> records = {
        {"data.pkl", pickle()}, {"byteorder", byte_order}, {"data/0", storage_text}};
    ZipLayout layout("archive");
    std::string text;
    std::vector<u32> crcs;
    for (const auto& [name, content] : records) {
      const std::size_t record = layout.add(name, static_cast<i64>(content.size()));
      crcs.push_back(with_crcs ? crc32_of(std::as_bytes(std::span(content))) : 0);
      text += layout.header(record) + content + layout.descriptor(record, crcs.back());
    }
    return text + layout.directory(crcs);
  }
};

/// A checkpoint of one BF16 tensor [2, 3] in one item, and an object.
class DcpSourceTest : public testing::Test {
 protected:
  DcpSourceTest() {
    std::string pattern = (fs::path(testing::TempDir()) / "dcp_source_XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
    metadata_.files = {"__0_0.distcp"};
  }
  ~DcpSourceTest() override { fs::remove_all(dir_); }

  void put(const std::string& item) {
    const auto bytes = static_cast<i64>(item.size());
    metadata_.tensors = {{"t", Dtype::BF16, {2, 3}, {{{0, 0}, {2, 3}, {0, 3, bytes}}}}};
    metadata_.objects = {{"o", {0, 0, 3}}};
    write(".metadata", print_dcp_metadata(metadata_));
    write("__0_0.distcp", "obj" + item);
  }
  void put(const MadeItem& item) { put(item.zip()); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }

  std::string open_slug() const {
    return slug_of([&] { open_dist(dir_); });
  }
  std::string read_slug() const {
    return slug_of([&] { read_all(*open_dist(dir_), 0); });
  }
  std::string check_slug() const {
    return slug_of([&] { open_dist(dir_)->content_check()->run(2, {}); });
  }

  std::string read_numbers() const {
    std::string text;
    for (const std::byte b : read_all(*open_dist(dir_), 0)) text += std::to_string(std::to_integer<int>(b)) + " ";
    return text;
  }

  fs::path dir_;
  DcpMetadata metadata_;
};

TEST_F(DcpSourceTest, AnItemIsWhatTheMetadataSays) {
  put(MadeItem{});
  EXPECT_EQ(read_numbers(), "0 1 2 3 4 5 6 7 8 9 10 11 ");
  EXPECT_EQ(check_slug(), "none");
  put(MadeItem{.strides = {1, 2}});  // saved from a transposed view
  EXPECT_EQ(read_numbers(), "0 1 4 5 8 9 2 3 6 7 10 11 ");
  for (const MadeItem& item : {MadeItem{.shape = {3, 2}, .strides = {2, 1}}, MadeItem{.storage = "HalfStorage"},
                               MadeItem{.is_tensor = false}}) {
    put(item);
    EXPECT_EQ(open_slug(), "none");
    EXPECT_EQ(read_slug(), "dcp-item-mismatch");
    EXPECT_EQ(check_slug(), "dcp-item-mismatch");
  }
}

TEST_F(DcpSourceTest, StoragesAndByteOrder) {
  put(MadeItem{.stored_bytes = 11});
  EXPECT_EQ(read_slug(), "torch-storage");
  put(MadeItem{.count = 5, .stored_bytes = 10});
  EXPECT_EQ(read_slug(), "torch-strides");
  put(MadeItem{.byte_order = "big"});
  EXPECT_EQ(read_slug(), "not-supported");
}

TEST_F(DcpSourceTest, DamagedBytes) {
  std::string zip = MadeItem{}.zip();
  zip[zip.find(std::string("\0\1\2\3\4", 5)) + 2] ^= 1;
  put(zip);
  EXPECT_EQ(read_slug(), "none");  // reading alone does not see it
  EXPECT_EQ(check_slug(), "zip-crc");
  put(MadeItem{.with_crcs = false});
  EXPECT_EQ(check_slug(), "none");
  put("PK is no zip, whatever it begins with");
  EXPECT_EQ(read_slug(), "zip-directory");
  put("");
  EXPECT_EQ(read_slug(), "zip-directory");
}

/// Reads the tensor's bytes [begin, end) for each of these ranges, damages the file, and checks it.
TEST_F(DcpSourceTest, WhatPassedIsNotReadAgain) {
  using Ranges = std::vector<std::pair<i64, i64>>;
  const std::string sound = MadeItem{}.zip();
  std::string damaged = sound;
  damaged[damaged.find(std::string("\0\1\2\3\4", 5)) + 2] ^= 1;
  const auto slug_after = [&](const Ranges& ranges, const std::string& before) {
    put(before);
    const auto source = open_dist(dir_);
    source->content_check()->watch();
    return slug_of([&] {
      for (const auto& [begin, end] : ranges) {
        std::vector<std::byte> part(static_cast<std::size_t>(end - begin));
        source->read(0, begin, part);
      }
      std::fstream(dir_ / "__0_0.distcp", std::ios::in | std::ios::out | std::ios::binary) << "obj" + damaged;
      source->content_check()->run(2, {});
    });
  };
  for (const Ranges& whole : {Ranges{{0, 12}}, Ranges{{4, 12}, {0, 4}}, Ranges{{8, 12}, {0, 2}, {2, 8}}}) {
    EXPECT_EQ(slug_after(whole, sound), "none");
    EXPECT_EQ(slug_after(whole, damaged), "zip-crc");
  }
  for (const Ranges& others : {Ranges{}, Ranges{{4, 12}}, Ranges{{0, 12}, {0, 12}}, Ranges{{0, 6}, {4, 12}}})
    EXPECT_EQ(slug_after(others, sound), "zip-crc");
}

/// The read that completes it, so that nothing more is made of it.
TEST_F(DcpSourceTest, DamageIsSeenAsItPasses) {
  std::string zip = MadeItem{}.zip();
  zip[zip.find(std::string("\0\1\2\3\4", 5)) + 2] ^= 1;
  put(zip);
  const auto source = open_dist(dir_);
  source->content_check()->watch();
  std::vector<std::byte> half(6);
  source->read(0, 0, half);
  EXPECT_EQ(slug_of([&] { source->read(0, 6, half); }), "zip-crc");
}

TEST_F(DcpSourceTest, FilesAndRanges) {
  put(MadeItem{});
  fs::resize_file(dir_ / "__0_0.distcp", fs::file_size(dir_ / "__0_0.distcp") - 1);
  EXPECT_EQ(open_slug(), "dcp-item-range");
  fs::remove(dir_ / "__0_0.distcp");
  EXPECT_EQ(open_slug(), "dcp-missing-file");
  fs::remove(dir_ / ".metadata");
  EXPECT_EQ(open_slug(), "not-found");
}

TEST_F(DcpSourceTest, ItemsThatOverlap) {
  put(MadeItem{});
  metadata_.objects[0].item.length = 4;
  write(".metadata", print_dcp_metadata(metadata_));
  EXPECT_EQ(open_slug(), "dcp-item-overlap");
}

/// One blob for all tensors: the items' lengths are those of the tensors alone.
TEST_F(DcpSourceTest, SafetensorsItemsAreNamed) {
  const std::string blob = std::string("\x02\0\0\0\0\0\0\0", 8) + "{}............";
  put(blob);
  EXPECT_EQ(read_slug(), "not-supported");
  metadata_.tensors.push_back(metadata_.tensors[0]);
  metadata_.tensors[1].name = "u";
  write(".metadata", print_dcp_metadata(metadata_));
  EXPECT_EQ(open_slug(), "not-supported");
}

TEST_F(DcpSourceTest, SideFiles) {
  put(MadeItem{});
  write("metadata.json", "{}");
  write("integrity.json", "{}");
  const auto source = open_dist(dir_);
  EXPECT_EQ(source->structure().metadata_json, "{}");
  EXPECT_TRUE(source->structure().has_integrity);
  EXPECT_EQ(source->structure().objects.at(0).bytes, 3);
  EXPECT_EQ(source->structure().objects[0].read(),
            (std::vector<std::byte>{std::byte{'o'}, std::byte{'b'}, std::byte{'j'}}));
}

TEST_F(DcpSourceTest, AFileThatShrinksIsSeen) {
  put(MadeItem{});
  const auto source = open_dist(dir_);
  fs::resize_file(dir_ / "__0_0.distcp", 100);
  EXPECT_EQ(slug_of([&] { read_all(*source, 0); }), "source-changed");
}

/// A column beside two blocks: it begins first and ends after the first block.
TEST_F(DcpSourceTest, ChunksWithinTheReachOfOthers) {
  const auto item = [](std::vector<i64> shape) {
    MadeItem made;
    made.count = shape[0] * shape[1];
    made.stored_bytes = made.count * 2;
    made.strides = {shape[1], 1};
    made.shape = std::move(shape);
    return made.zip();
  };
  const std::string column = item({4, 1});
  const std::string block = item({2, 3});
  const auto at = [&](i64 blocks, const std::string& zip) {
    const auto offset =
        blocks == 0 ? std::size_t{0} : column.size() + static_cast<std::size_t>(blocks - 1) * block.size();
    return DcpItem{0, static_cast<i64>(offset), static_cast<i64>(zip.size())};
  };
  metadata_.tensors = {
      {"t",
       Dtype::BF16,
       {4, 4},
       {{{0, 0}, {4, 1}, at(0, column)}, {{0, 1}, {2, 3}, at(1, block)}, {{2, 1}, {2, 3}, at(2, block)}}}};
  write(".metadata", print_dcp_metadata(metadata_));
  write("__0_0.distcp", column + block + block);
  const std::vector<int> want = {0, 1, 0, 1, 2, 3, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11,
                                 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9, 10, 11};
  const auto source = open_dist(dir_);
  for (std::size_t begin = 0; begin < want.size(); ++begin)
    for (std::size_t end = begin; end <= want.size(); ++end) {
      std::vector<std::byte> part(end - begin, std::byte{0xEE});
      source->read(0, static_cast<i64>(begin), part);
      for (std::size_t i = begin; i < end; ++i)
        ASSERT_EQ(std::to_integer<int>(part[i - begin]), want[i]) << begin << " " << end << " " << i;
    }
}

/// The same for a file of torch.save, of which each tensor is a record.
TEST_F(DcpSourceTest, WhatPassedOfAFileIsNotReadAgain) {
  const fs::path copy = dir_ / "pytorch_model.bin";
  const auto slug_after = [&](bool reads_all, bool damages_before) {
    fs::copy_file(testdata("torch/pytorch_model.bin"), copy, fs::copy_options::overwrite_existing);
    const std::size_t last = open_source(copy)->inventory().tensors.size() - 1;
    const i64 place = open_source(copy)->file_backed()->place(last).offset;
    const auto damage = [&] {
      std::fstream file(copy, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(place);
      const int byte = file.get();
      file.seekp(place);
      file.put(static_cast<char>(byte ^ 1));
    };
    if (damages_before) damage();
    const auto source = open_source(copy);
    source->content_check()->watch();
    return slug_of([&] {
      for (std::size_t t = 0; t < last + (reads_all ? 1 : 0); ++t) read_all(*source, t);
      if (!damages_before) damage();
      source->content_check()->run(2, {});
    });
  };
  EXPECT_EQ(slug_after(true, false), "none");
  EXPECT_EQ(slug_after(true, true), "zip-crc");
  EXPECT_EQ(slug_after(false, false), "zip-crc");
}

/// Many threads ask for the same unopened chunks at once.
TEST(DcpSource, ReadsFromManyThreads) {
  const auto source = open_dist(testdata("torch/dcp2"));
  const auto truth = open_source(testdata("torch/full.safetensors"));
  const TensorRef* fc1 = find(*source, "decoder.layers.0.mlp.experts.linear_fc1.weight");
  ASSERT_NE(fc1, nullptr);
  const std::size_t number = number_of(*source, fc1);
  const auto whole = read_all(*open_dist(testdata("torch/dcp2")), number);
  std::atomic<int> wrong = 0;
  parallel_for(64, 8, [&](std::size_t, int) { wrong += read_all(*source, number) != whole ? 1 : 0; });
  EXPECT_EQ(wrong, 0);
  const i64 expert = fc1->bytes / 4;
  for (i64 e = 0; e < 4; ++e) {
    const TensorRef* want = find(*truth, "decoder.layers.0.mlp.experts.linear_fc1.weight" + std::to_string(e));
    ASSERT_NE(want, nullptr);
    std::vector<std::byte> part(static_cast<std::size_t>(expert));
    source->read(number, e * expert, part);
    EXPECT_EQ(part, read_all(*truth, number_of(*truth, want))) << e;
    const TensorRef* split = find(*source, "tp.0.fc1");  // cut along the rows of each expert
    ASSERT_NE(split, nullptr);
    source->read(number_of(*source, split), e * expert, part);
    EXPECT_EQ(part, read_all(*truth, number_of(*truth, want))) << e;
  }
}

}  // namespace
}  // namespace glu_ckpt
