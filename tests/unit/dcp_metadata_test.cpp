#include "format/dcp_metadata.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>

#include "format/pickle_graph.hpp"
#include "format/torch_tensor.hpp"
#include "io/file.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using Make = std::function<PickleRef(PickleGraph&)>;
using Parts = std::map<std::string, Make>;
constexpr const char* kModule = "torch.distributed.checkpoint.metadata";

/// Metadata of one tensor `t`, F32 [2, 3], in one chunk, and of an object `o`, with some parts replaced.
class Crafted {
 public:
  explicit Crafted(Parts parts) : parts_(std::move(parts)) {}

  std::string text() {
    const PickleRef tensor = part("tensor", object("TensorStorageMetadata", {{"properties", properties()},
                                                                             {"size", part("size", size({2, 3}))},
                                                                             {"chunks", part("chunks", chunks())}}));
    const PickleRef bytes = part("object", object("BytesStorageMetadata", {}));
    const PickleRef entries = part("entries", dict({part("name", string("t")), tensor, string("o"), bytes}));
    const PickleRef root = object("Metadata", {{"state_dict_metadata", entries},
                                               {"planner_data", part("planner", graph_.add_none())},
                                               {"storage_data", part("storage", storage())}});
    return write_pickle(graph_, part("root", root));
  }

 private:
  using Fields = std::vector<std::pair<const char*, PickleRef>>;

  PickleRef part(const std::string& name, PickleRef usual) {
    const auto at = parts_.find(name);
    return at == parts_.end() ? usual : at->second(graph_);
  }
  PickleRef string(const char* text) { return graph_.add_string(text); }
  PickleRef size(const std::vector<i64>& extents) { return add_size(graph_, extents); }
  PickleRef dict(const std::vector<PickleRef>& items) { return graph_.add_container(PickleKind::Dict, items); }

  PickleRef object(const char* type, const Fields& fields, const char* module = kModule) {
    const PickleRef made = graph_.add_new(graph_.add_global(module, type), graph_.add_tuple({}));
    std::vector<PickleRef> items;
    for (const auto& [name, value] : fields) items.insert(items.end(), {string(name), value});
    if (!items.empty()) graph_.add_state(made, dict(items));
    return made;
  }

  PickleRef properties() {
    const PickleRef layout = graph_.add_call(graph_.add_global("torch.serialization", "_get_layout"),
                                             graph_.add_tuple({part("layout", string("torch.strided"))}));
    const PickleRef made = object("TensorProperties", {});
    graph_.add_state(made, graph_.add_tuple({part("dtype", graph_.add_global("torch", "float32")), layout}));
    return part("properties", made);
  }

  PickleRef chunks() {
    const PickleRef chunk = object(
        "ChunkStorageMetadata", {{"offsets", part("offsets", size({0, 0}))}, {"sizes", part("sizes", size({2, 3}))}});
    return graph_.add_container(PickleKind::List, std::vector{part("chunk", chunk)});
  }

  PickleRef storage() {
    const PickleRef index =
        object("MetadataIndex", {{"fqn", part("fqn", string("t"))}, {"offset", part("start", size({0, 0}))}});
    const PickleRef bytes = object("MetadataIndex", {{"fqn", string("o")}, {"index", graph_.add_none()}});
    return dict({part("index", index), part("info", info(0, 10)), bytes, info(10, 5)});
  }

  PickleRef info(i64 offset, i64 length) {
    const bool first = offset == 0;
    const auto value = [&](const char* name, PickleRef usual) { return first ? part(name, usual) : usual; };
    return object("_StorageInfo",
                  {{"relative_path", value("path", string("__0_0.distcp"))},
                   {"offset", value("offset", graph_.add_int(offset))},
                   {"length", value("length", graph_.add_int(length))},
                   {"transform_descriptors", value("transforms", graph_.add_none())}},
                  "torch.distributed.checkpoint.filesystem");
  }

  PickleGraph graph_;
  Parts parts_;
};

std::string slug_with(const Parts& parts) {
  return slug_of([&] { read_dcp_metadata(Crafted(parts).text(), "x/.metadata"); });
}

/// The byte that the error names, as "x/.metadata: byte N: ".
char opcode_at_fault(const Parts& parts) {
  const std::string pickle = Crafted(parts).text();
  try {
    read_dcp_metadata(pickle, "x/.metadata");
  } catch (const Error& error) {
    const std::string_view message = error.what();
    constexpr std::string_view kHead = "x/.metadata: byte ";
    if (!message.starts_with(kHead)) return '?';
    return pickle.at(std::stoul(std::string(message.substr(kHead.size()))));
  }
  return '!';
}

Make integer(i64 value) {
  return [value](PickleGraph& graph) { return graph.add_int(value); };
}
Make text(const std::string& value) {
  return [value](PickleGraph& graph) { return graph.add_string(value); };
}
Make extents(const std::vector<i64>& value) {
  return [value](PickleGraph& graph) { return add_size(graph, value); };
}
Make global(const std::string& name) {
  return [name](PickleGraph& graph) { return graph.add_global("torch", name); };
}

/// As torch.distributed.checkpoint writes it, with the protocol of its Python.
TEST(DcpMetadata, GoldenVector) {
  const std::string path = std::string(std::getenv("GLU_CKPT_GALLERIES")) + "/corpus/dcp/two_chunks_and_bytes";
  const DcpMetadata metadata = read_dcp_metadata(read_small_file(path, 1 << 20, ErrorCode::Io), path);
  ASSERT_EQ(metadata.tensors.size(), 1U);
  const DcpTensor& tensor = metadata.tensors[0];
  EXPECT_EQ(tensor.name, "decoder.layers.mlp.experts.experts.linear_fc1.weight");
  EXPECT_EQ(tensor.dtype, Dtype::BF16);
  EXPECT_EQ(tensor.shape, (std::vector<i64>{1, 1, 4, 2}));
  ASSERT_EQ(tensor.chunks.size(), 2U);
  EXPECT_EQ(tensor.chunks[1].start, (std::vector<i64>{0, 0, 2, 0}));
  EXPECT_EQ(tensor.chunks[1].shape, (std::vector<i64>{1, 1, 2, 2}));
  EXPECT_EQ(tensor.chunks[0].item.offset, 100);
  EXPECT_EQ(tensor.chunks[1].item.offset, 1677);
  EXPECT_EQ(tensor.chunks[1].item.length, 1577);
  ASSERT_EQ(metadata.objects.size(), 1U);
  EXPECT_EQ(metadata.objects[0].name, "common_state/shard_0_1");
  EXPECT_EQ(metadata.objects[0].item.length, 100);
  EXPECT_EQ(metadata.files, std::vector<std::string>{"__0_0.distcp"});
  EXPECT_FALSE(metadata.has_planner_data);
}

TEST(DcpMetadata, CraftedOneIsGood) {
  const DcpMetadata metadata = read_dcp_metadata(Crafted({}).text(), "x");
  EXPECT_EQ(metadata.tensors.size(), 1U);
  EXPECT_EQ(metadata.objects.size(), 1U);
}

TEST(DcpMetadata, WrongKindsAreRefused) {
  const Make number = integer(7);
  for (const char* part : {"tensor", "object", "entries", "name", "size", "chunks", "chunk", "offsets", "sizes",
                           "properties", "dtype", "storage", "index", "fqn", "info", "path", "planner", "root"})
    EXPECT_EQ(slug_with({{part, number}}), "dcp-metadata") << part;
  for (const char* part : {"offset", "length"}) {
    EXPECT_EQ(slug_with({{part, text("7")}}), "dcp-metadata") << part;
    EXPECT_EQ(slug_with({{part, integer(-1)}}), "dcp-metadata") << part;
  }
  EXPECT_EQ(slug_with({{"start", text("0")}}), "dcp-metadata");
  EXPECT_EQ(slug_with({{"size", extents({2, -3})}}), "dcp-metadata");
  EXPECT_EQ(slug_with({{"offset", integer(std::numeric_limits<i64>::max())}}), "dcp-metadata");
}

TEST(DcpMetadata, DtypesAndLayouts) {
  EXPECT_EQ(slug_with({{"dtype", global("complex128")}}), "not-supported");
  EXPECT_EQ(slug_with({{"layout", text("torch.sparse_coo")}}), "not-supported");
  EXPECT_EQ(slug_with({{"size", extents({i64{1} << 40, i64{1} << 40})}}), "shape-overflow");
  EXPECT_EQ(slug_with({{"size", extents({i64{1} << 31, i64{1} << 30})}}), "shape-overflow");
  EXPECT_EQ(slug_with({{"size", extents({4, 0, i64{1} << 61})}}), "shape-overflow");
}

TEST(DcpMetadata, Paths) {
  for (const char* path : {"/etc/passwd", "../x", "a/../x", ""})
    EXPECT_EQ(slug_with({{"path", text(path)}}), "index-path") << path;
  EXPECT_EQ(slug_with({{"path", text("sub/__0_0.distcp")}}), "none");
}

TEST(DcpMetadata, TransformsAreRefused) {
  const auto list = [](bool empty) {
    return [empty](PickleGraph& graph) {
      const std::vector<PickleRef> items(empty ? 0 : 1, graph.add_string("zstd"));
      return graph.add_container(PickleKind::List, items);
    };
  };
  EXPECT_EQ(slug_with({{"transforms", list(true)}}), "none");
  EXPECT_EQ(slug_with({{"transforms", list(false)}}), "not-supported");
  EXPECT_EQ(slug_with({{"transforms", text("zstd")}}), "not-supported");
}

TEST(DcpMetadata, ChunksAndItemsMatch) {
  EXPECT_EQ(slug_with({{"start", extents({1, 0})}}), "dcp-metadata");
  EXPECT_EQ(slug_with({{"fqn", text("u")}}), "dcp-metadata");
  EXPECT_EQ(slug_with({{"name", text("o")}}), "dcp-metadata");
  EXPECT_EQ(slug_with({{"fqn", text("o")}}), "dcp-metadata");
}

TEST(DcpMetadata, ChunksLieWithin) {
  EXPECT_EQ(slug_with({{"sizes", extents({3, 3})}}), "chunk-bounds");
  EXPECT_EQ(slug_with({{"sizes", extents({2})}}), "chunk-bounds");
  const Make one = extents({1, 0});
  EXPECT_EQ(slug_with({{"offsets", one}, {"start", one}}), "chunk-bounds");
  EXPECT_EQ(slug_with({{"sizes", extents({2, 2})}}), "chunk-hole");
}

TEST(DcpMetadata, PlannerData) {
  const auto planner = [](const std::function<PickleRef(PickleGraph&)>& path) {
    return [path](PickleGraph& graph) {
      return graph.add_container(PickleKind::Dict, std::vector{graph.add_string("t"), path(graph)});
    };
  };
  const auto good = planner([](PickleGraph& graph) {
    return graph.add_tuple({graph.add_string("model"), graph.add_int(3), graph.add_string("t")});
  });
  const DcpMetadata metadata = read_dcp_metadata(Crafted({{"planner", good}}).text(), "x");
  EXPECT_TRUE(metadata.has_planner_data);
  EXPECT_EQ(metadata.paths.at("t"), (KeyPath{{"model", false}, {"3", true}, {"t", false}}));
  const DcpMetadata again = read_dcp_metadata(print_dcp_metadata(metadata), "x");
  EXPECT_EQ(again.paths, metadata.paths);
  EXPECT_EQ(slug_with({{"planner", planner(text("t"))}}), "dcp-metadata");
  EXPECT_EQ(slug_with({{"planner", planner([](PickleGraph& graph) { return graph.add_tuple({}); })}}), "dcp-metadata");
  EXPECT_EQ(slug_with({{"planner", planner([](PickleGraph& graph) { return graph.add_tuple({graph.add_none()}); })}}),
            "dcp-metadata");
}

/// What is wrong has a byte of its own, or is in an entry that has one.
TEST(DcpMetadata, ErrorsNameTheOpcodeAtFault) {
  const Make string = [](PickleGraph& graph) { return graph.add_string("no such thing"); };
  const Make number = [](PickleGraph& graph) { return graph.add_int(-70000); };
  const Make none = [](PickleGraph& graph) { return graph.add_none(); };
  for (const char* part : {"size", "chunk", "offsets", "sizes", "properties", "index", "info", "offset", "length"})
    EXPECT_EQ(opcode_at_fault({{part, string}}), 'X') << part;
  for (const char* part : {"fqn", "path"})
    EXPECT_EQ(opcode_at_fault({{part, number}}), part == std::string("fqn") ? '\x81' : 'J') << part;
  // None is one value wherever it stands.
  for (const char* part : {"size", "properties", "info", "offset", "length", "path"})
    EXPECT_EQ(opcode_at_fault({{part, none}}), '\x81') << part;
  EXPECT_EQ(opcode_at_fault({{"dtype", global("qint8")}}), '\x81');
  EXPECT_EQ(opcode_at_fault({{"sizes", extents({3, 3})}}), '\x81');
  EXPECT_EQ(opcode_at_fault({{"start", extents({1, 0})}}), '\x81');
}

DcpTensor tensor_of(std::vector<i64> shape, const std::vector<std::pair<std::vector<i64>, std::vector<i64>>>& boxes) {
  DcpTensor tensor{"t", Dtype::U8, std::move(shape), {}};
  for (const auto& [start, extent] : boxes) tensor.chunks.push_back({start, extent, {}});
  return tensor;
}

std::string tiling(const DcpTensor& tensor) {
  return slug_of([&] { check_tiling(tensor, "x"); });
}

TEST(DcpMetadata, Tilings) {
  EXPECT_EQ(tiling(tensor_of({}, {{{}, {}}})), "none");
  EXPECT_EQ(tiling(tensor_of({}, {})), "chunk-hole");
  EXPECT_EQ(tiling(tensor_of({0, 5}, {})), "none");
  EXPECT_EQ(tiling(tensor_of({4}, {{{0}, {2}}, {{2}, {2}}, {{4}, {0}}})), "none");
  EXPECT_EQ(tiling(tensor_of({4}, {{{0}, {2}}, {{2}, {1}}})), "chunk-hole");
  EXPECT_EQ(tiling(tensor_of({4}, {{{0}, {1}}, {{2}, {2}}})), "chunk-hole");
  EXPECT_EQ(tiling(tensor_of({4}, {{{1}, {3}}})), "chunk-hole");
  EXPECT_EQ(tiling(tensor_of({4}, {{{0}, {3}}, {{2}, {2}}})), "chunk-overlap");
  // A pinwheel, which no plane parts.
  const std::vector<std::pair<std::vector<i64>, std::vector<i64>>> wheel = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_EQ(tiling(tensor_of({3, 3}, wheel)), "none");
  EXPECT_EQ(tiling(tensor_of({3, 3}, {wheel.begin(), wheel.end() - 1})), "chunk-hole");
  auto wide = wheel;
  wide[4] = {{1, 1}, {1, 2}};
  EXPECT_EQ(tiling(tensor_of({3, 3}, wide)), "chunk-overlap");
}

/// A grid of [layers, experts, parts]: one chunk taken away, or moved, is seen wherever it is.
TEST(DcpMetadata, TilingsOfAGrid) {
  DcpTensor grid{"t", Dtype::BF16, {4, 5, 6, 7}, {}};
  for (i64 l = 0; l < 4; ++l)
    for (i64 e = 0; e < 5; ++e)
      for (i64 row = 0; row < 6; row += 2) grid.chunks.push_back({{l, e, row, 0}, {1, 1, 2, 7}, {}});
  EXPECT_EQ(tiling(grid), "none");
  for (std::size_t i = 0; i < grid.chunks.size(); ++i) {
    DcpTensor broken = grid;
    broken.chunks.erase(broken.chunks.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(tiling(broken), "chunk-hole") << i;
    broken = grid;
    broken.chunks[i].start[2] = broken.chunks[i].start[2] == 0 ? 1 : broken.chunks[i].start[2] - 1;
    EXPECT_NE(tiling(broken), "none") << i;
  }
}

/// Cut off strip by strip all around: refused rather than checked for minutes.
TEST(DcpMetadata, HostileTilingEnds) {
  DcpTensor spiral{"t", Dtype::U8, {20001, 20001}, {}};
  i64 low = 0;
  i64 high = 20001;
  for (; low < 9000; ++low, --high) {
    spiral.chunks.push_back({{low, low}, {1, high - low}, {}});
    spiral.chunks.push_back({{low + 1, low}, {high - low - 1, 1}, {}});
    spiral.chunks.push_back({{high - 1, low + 1}, {1, high - low - 1}, {}});
    spiral.chunks.push_back({{low + 1, high - 1}, {high - low - 2, 1}, {}});
  }
  spiral.chunks.push_back({{low, low}, {high - low, high - low}, {}});
  EXPECT_EQ(tiling(spiral), "not-supported");
  spiral.shape = {40, 40};
  EXPECT_EQ(tiling(spiral), "chunk-bounds");
}

TEST(DcpMetadata, EmptyChunksNeedNoItem) {
  DcpMetadata metadata;
  metadata.files = {"a"};
  metadata.tensors = {tensor_of({2}, {{{0}, {2}}, {{2}, {0}}})};
  metadata.tensors[0].chunks[0].item = {0, 0, 5};
  metadata.tensors[0].chunks[1].item = {0, 5, 5};
  EXPECT_EQ(read_dcp_metadata(print_dcp_metadata(metadata), "x").tensors[0].chunks.size(), 2U);
  metadata.tensors[0].chunks[1].start = {0};  // the other's place: storage_data has the two keys as one
  EXPECT_EQ(slug_of([&] { read_dcp_metadata(print_dcp_metadata(metadata), "x"); }), "dcp-metadata");
}

TEST(DcpMetadata, ItemsMustNotOverlap) {
  DcpMetadata metadata;
  metadata.files = {"a", "b"};
  metadata.objects = {{"x", {0, 0, 10}}, {"y", {0, 10, 10}}, {"z", {1, 5, 10}}};
  EXPECT_EQ(slug_of([&] { check_item_overlaps(metadata, "x"); }), "none");
  metadata.objects[2].item.file = 0;
  EXPECT_EQ(slug_of([&] { check_item_overlaps(metadata, "x"); }), "dcp-item-overlap");
}

/// Work that is quadratic in 100,000 tensors runs into the time limit of the test program.
TEST(DcpMetadata, ManyTensors) {
  DcpMetadata metadata;
  metadata.files = {"__0_0.distcp"};
  for (i64 i = 0; i < 100'000; ++i) {
    DcpTensor tensor = tensor_of({8, 8}, {{{0, 0}, {8, 8}}});
    tensor.name = "model.layers." + std::to_string(i / 1000) + ".mlp.experts." + std::to_string(i % 1000) + ".weight";
    tensor.chunks[0].item = {0, i * 100, 100};
    metadata.tensors.push_back(std::move(tensor));
  }
  const std::string printed = print_dcp_metadata(metadata);
  const DcpMetadata again = read_dcp_metadata(printed, "x");
  check_item_overlaps(again, "x");
  ASSERT_EQ(again.tensors.size(), metadata.tensors.size());
  EXPECT_EQ(again.tensors[77'777].name, metadata.tensors[77'777].name);
  EXPECT_EQ(again.tensors[77'777].chunks[0].item.offset, 7'777'700);
}

}  // namespace
}  // namespace glu_ckpt
