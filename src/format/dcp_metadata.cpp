#include "format/dcp_metadata.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/parser_memory.hpp"
#include "format/inner_path.hpp"
#include "format/pickle_graph.hpp"
#include "format/torch_dtype.hpp"

namespace glu_ckpt {
namespace {

/// The node of a field that an object does not have.
constexpr PickleRef kAbsent = ~PickleRef{0};

/// An entry of storage_data.
struct StoredItem {
  std::string_view name;
  bool has_start = false;
  std::vector<i64> start;
  DcpItem item;
};

/// torch's own limit.
constexpr std::size_t kMaxAxes = 64;
/// The cost of a chunk or of a step of a path in the budget: roughly its size in memory.
constexpr std::size_t kChunkCost = 96;

/// A path in as few bytes as its keys have: a path of many keys takes ten times its text else, and the pickle is still
/// there when paths are read.
std::string packed(const KeyPath& path) {
  std::string bytes;
  for (const PathKey& key : path) {
    const auto size = static_cast<u32>(key.text.size());
    bytes += key.is_index ? '\1' : '\0';
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size).append(key.text);
  }
  bytes.shrink_to_fit();
  return bytes;
}

KeyPath unpacked(std::string_view bytes) {
  KeyPath path;
  while (!bytes.empty()) {
    u32 size = 0;
    std::memcpy(&size, bytes.data() + 1, sizeof size);
    path.push_back({std::string(bytes.substr(1 + sizeof size, size)), bytes.front() == '\1'});
    bytes.remove_prefix(1 + sizeof size + size);
  }
  path.shrink_to_fit();
  return path;
}

/// Names of a planner_data, each with its packed() path.
using PackedPaths = std::vector<std::pair<std::string, std::string>>;

class MetadataReader {
 public:
  MetadataReader(std::string text, const std::string& file) : graph_(std::move(text)), part_(file) {}

  DcpMetadata read() {
    const PickleRef root = read_pickle(graph_, PickleNames::DcpMetadata, part_);
    // Megatron's subclass is MCoreMetadata.
    if (!class_of(root).ends_with("Metadata")) fail_metadata(root, {}, "holds no Metadata object");
    const auto [entries, storage, planner] =
        fields<3>(root, {"state_dict_metadata", "storage_data", "planner_data"}, {});
    entry_ = root;
    read_entries(entries);
    entry_ = root;
    read_storage(storage);
    entry_ = root;
    if (planner != kAbsent && graph_.kind(planner) != PickleKind::None) read_paths(planner);
    place_items();
    for (const DcpTensor& tensor : out_.tensors) check_tiling(tensor, part_);
    return std::move(out_);
  }

  PackedPaths take_paths() { return std::move(paths_); }

 private:
  /// The node itself where it has a position of its own, otherwise the entry that is being read.
  WhereAt where(PickleRef node, std::string_view name) const {
    const std::optional<i64> own = node == kAbsent ? std::nullopt : graph_.position(node);
    return {part_, own ? own : entry_ == kAbsent ? std::nullopt : graph_.position(entry_), std::string(name)};
  }

  /// A pair is where its value is, or its key where that is a value without a place of its own.
  void enter(PickleRef key, PickleRef value) { entry_ = graph_.position(value) ? value : key; }

  [[noreturn]] void fail_metadata(const WhereAt& where, std::string_view what) const {
    if (where.tensor.empty()) fail_at(ErrorCode::DcpMetadata, where, "{}", what);
    fail_at(ErrorCode::DcpMetadata, where, "'{}': {}", where.tensor, what);
  }

  [[noreturn]] void fail_metadata(PickleRef node, std::string_view name, std::string_view what) const {
    fail_metadata(where(node, name), what);
  }

  /// The position of an entry or item, kept for when the graph is gone.
  u32 position_of(PickleRef node) const { return static_cast<u32>(graph_.position(node).value_or(0)); }

  /// The class of an object; empty where the node is none.
  std::string_view class_of(PickleRef node) const {
    if (node == kAbsent) return {};
    const PickleKind kind = graph_.kind(node);
    if (kind != PickleKind::New && kind != PickleKind::Call) return {};
    const PickleRef type = graph_.function(node);
    return graph_.kind(type) == PickleKind::Global ? graph_.name(type) : std::string_view();
  }

  /// Parts of a pickle may be shared, so a small file could ask for any amount of memory; real ones share
  /// little.
  void spend(std::size_t amount, std::string_view name) const {
    spent_ += static_cast<i64>(amount);
    if (spent_ > allowed_)
      fail_metadata(entry_, name,
                    "shares parts: its values " + over_allowance(std::ssize(graph_.source()), spent_).value());
  }

  bool is_text(PickleRef node) const { return node != kAbsent && graph_.kind(node) == PickleKind::String; }

  /// Attributes of an object by name; the others are not looked at.
  template <std::size_t N>
  std::array<PickleRef, N> fields(PickleRef object, const std::array<std::string_view, N>& names,
                                  std::string_view entry) const {
    std::array<PickleRef, N> found;
    found.fill(kAbsent);
    for (const PickleRef state : graph_.states(object)) {
      if (graph_.kind(state) != PickleKind::Dict) fail_metadata(state, entry, "an object's attributes are no dict");
      const auto items = graph_.items(state);
      for (std::size_t i = 0; i + 1 < items.size(); i += 2)
        for (std::size_t n = 0; n < N; ++n)
          if (is_text(items[i]) && graph_.text(items[i]) == names[n]) found[n] = items[i + 1];
    }
    return found;
  }

  std::vector<PickleRef> dict_items(PickleRef node, std::string_view what) const {
    if (node == kAbsent || graph_.kind(node) != PickleKind::Dict)
      fail_metadata(node, {}, fmt::format("{} is no dict", what));
    return graph_.items(node);
  }

  i64 size_value(PickleRef node, std::string_view name, std::string_view what) const {
    if (node == kAbsent || graph_.kind(node) != PickleKind::Int || graph_.integer(node) < 0)
      fail_metadata(node, name, fmt::format("{} is no size", what));
    return graph_.integer(node);
  }

  /// torch.Size((2, 3)), or the tuple alone.
  std::vector<i64> extents(PickleRef node, std::string_view name, std::string_view what) const {
    if (class_of(node) == "Size") {
      const PickleRef arguments = graph_.arguments(node);
      const auto items =
          graph_.kind(arguments) == PickleKind::Tuple ? graph_.items(arguments) : std::vector<PickleRef>();
      node = items.size() == 1 ? items[0] : kAbsent;
    }
    if (node == kAbsent || (graph_.kind(node) != PickleKind::Tuple && graph_.kind(node) != PickleKind::List))
      fail_metadata(node, name, fmt::format("{} is no torch.Size", what));
    std::vector<i64> numbers;
    const auto items = graph_.items(node);
    if (items.size() > kMaxAxes) fail_metadata(node, name, fmt::format("{} has {} axes", what, items.size()));
    spend(items.size() + 1, name);
    numbers.reserve(items.size());
    for (const PickleRef item : items) numbers.push_back(size_value(item, name, what));
    return numbers;
  }

  void read_entries(PickleRef node) {
    const auto items = dict_items(node, "state_dict_metadata");
    out_.tensors.reserve(items.size() / 2);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      enter(items[i], items[i + 1]);
      if (!is_text(items[i])) fail_metadata(items[i], {}, "a key of state_dict_metadata is no string");
      const std::string_view name = graph_.text(items[i]);
      spend(name.size(), {});
      const std::string_view type = class_of(items[i + 1]);
      if (type == "BytesStorageMetadata")
        out_.objects.push_back({std::string(name), {}, position_of(items[i + 1])});
      else if (type == "TensorStorageMetadata")
        out_.tensors.push_back(read_tensor(name, items[i + 1]));
      else
        fail_metadata(items[i], name, "is neither a tensor nor bytes");
    }
  }

  DcpTensor read_tensor(std::string_view name, PickleRef node) const {
    const auto [properties, size, chunks] = fields<3>(node, {"properties", "size", "chunks"}, name);
    const TorchDtype& dtype = read_dtype(properties, name);
    DcpTensor tensor{std::string(name), dtype.dtype, extents(size, name, "size"), {}, position_of(node)};
    check_size(tensor, dtype, size);
    if (chunks == kAbsent || graph_.kind(chunks) != PickleKind::List) fail_metadata(chunks, name, "chunks is no list");
    for (const PickleRef chunk : graph_.items(chunks)) {
      spend(kChunkCost, name);
      if (class_of(chunk) != "ChunkStorageMetadata") fail_metadata(chunk, name, "a chunk is no ChunkStorageMetadata");
      const auto [offsets, sizes] = fields<2>(chunk, {"offsets", "sizes"}, name);
      tensor.chunks.push_back(
          {extents(offsets, name, "offsets"), extents(sizes, name, "sizes"), {}, position_of(chunk)});
    }
    return tensor;
  }

  /// TensorProperties: a tuple that begins with dtype and layout.
  const TorchDtype& read_dtype(PickleRef node, std::string_view name) const {
    if (class_of(node) != "TensorProperties") fail_metadata(node, name, "properties are no TensorProperties");
    const auto states = graph_.states(node);
    if (states.size() != 1 || graph_.kind(states[0]) != PickleKind::Tuple)
      fail_metadata(node, name, "TensorProperties are no tuple");
    const auto items = graph_.items(states[0]);
    if (items.size() < 2 || graph_.kind(items[0]) != PickleKind::Global || graph_.module(items[0]) != "torch")
      fail_metadata(node, name, "has no dtype");
    check_layout(items[1], name);
    const TorchDtype* dtype = torch_dtype_named(graph_.name(items[0]));
    if (dtype == nullptr)
      fail_at(ErrorCode::NotSupported, where(node, name), "'{}' is of dtype torch.{}, which is not supported", name,
              graph_.name(items[0]));
    return *dtype;
  }

  /// torch.serialization._get_layout("torch.strided").
  void check_layout(PickleRef node, std::string_view name) const {
    if (graph_.kind(node) != PickleKind::Call || graph_.kind(graph_.arguments(node)) != PickleKind::Tuple) return;
    const auto items = graph_.items(graph_.arguments(node));
    if (items.size() == 1 && is_text(items[0]) && graph_.text(items[0]) != "torch.strided")
      fail_at(ErrorCode::NotSupported, where(node, name), "'{}' has the layout {}; only dense tensors are supported",
              name, graph_.text(items[0]));
  }

  void check_size(const DcpTensor& tensor, const TorchDtype& dtype, PickleRef node) const {
    // Steps along the axes must not overflow either where another axis has no extent.
    std::vector<i64> extents = tensor.shape;
    for (i64& extent : extents) extent = std::max<i64>(1, extent);
    const auto count = checked_product(extents);
    const auto bytes = count ? checked_mul(*count, std::max(dtype.element_bytes, dtype.values)) : std::nullopt;
    if (!bytes)
      fail_at(ErrorCode::ShapeOverflow, where(node, tensor.name), "'{}' has the impossible shape {}", tensor.name,
              shape_text(tensor.shape));
    if (tensor.shape.empty() && dtype.values > 1)
      fail_at(ErrorCode::NotSupported, where(node, tensor.name), "'{}' is a single element of {} values", tensor.name,
              dtype.values);
  }

  void read_storage(PickleRef node) {
    const auto items = dict_items(node, "storage_data");
    stored_.reserve(items.size() / 2);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      enter(items[i], items[i + 1]);
      if (class_of(items[i]) != "MetadataIndex")
        fail_metadata(items[i], {}, "a key of storage_data is no MetadataIndex");
      const auto [fqn, offset] = fields<2>(items[i], {"fqn", "offset"}, {});
      if (!is_text(fqn)) fail_metadata(items[i], {}, "an fqn of storage_data is no string");
      StoredItem stored;
      stored.name = graph_.text(fqn);
      stored.has_start = offset != kAbsent && graph_.kind(offset) != PickleKind::None;
      if (stored.has_start) stored.start = extents(offset, stored.name, "offset");
      stored.item = read_item(items[i + 1], stored.name);
      stored_.push_back(std::move(stored));
    }
  }

  DcpItem read_item(PickleRef node, std::string_view name) {
    if (class_of(node) != "_StorageInfo") fail_metadata(node, name, "its storage is no _StorageInfo");
    const auto [path, offset, length, transforms] =
        fields<4>(node, {"relative_path", "offset", "length", "transform_descriptors"}, name);
    if (transforms != kAbsent && graph_.kind(transforms) != PickleKind::None &&
        (graph_.kind(transforms) != PickleKind::List || graph_.has_items(transforms)))
      fail_at(ErrorCode::NotSupported, where(node, name),
              "'{}' is compressed or encrypted by an extension; save it without extensions", name);
    if (!is_text(path)) fail_metadata(path, name, "relative_path is no string");
    const DcpItem item{file_number(path, name), size_value(offset, name, "offset"), size_value(length, name, "length"),
                       position_of(node)};
    if (!checked_add(item.offset, item.length)) fail_metadata(node, name, "offset and length are too large");
    return item;
  }

  u32 file_number(PickleRef node, std::string_view name) {
    const std::string_view path = graph_.text(node);
    const auto [at, is_new] = files_.try_emplace(path, static_cast<u32>(out_.files.size()));
    if (!is_new) return at->second;
    if (const std::string fault = inner_path_fault(path); !fault.empty())
      fail_at(ErrorCode::IndexPath, where(node, name), "'{}' is said to be in '{}', {}", name, path, fault);
    out_.files.emplace_back(path);
    return at->second;
  }

  void read_paths(PickleRef node) {
    out_.has_planner_data = true;
    const auto items = dict_items(node, "planner_data");
    paths_.reserve(items.size() / 2);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      enter(items[i], items[i + 1]);
      if (!is_text(items[i])) fail_metadata(items[i], {}, "a key of planner_data is no string");
      spend(graph_.text(items[i]).size(), {});
      paths_.emplace_back(graph_.text(items[i]), packed(read_path(items[i + 1], graph_.text(items[i]))));
    }
  }

  KeyPath read_path(PickleRef node, std::string_view name) const {
    if (graph_.kind(node) != PickleKind::Tuple && graph_.kind(node) != PickleKind::List)
      fail_metadata(node, name, "its path in planner_data is no tuple");
    KeyPath path;
    for (const PickleRef item : graph_.items(node)) {
      spend(kChunkCost + (is_text(item) ? graph_.text(item).size() : 0), name);
      if (graph_.kind(item) == PickleKind::Int)
        path.push_back({fmt::format("{}", graph_.integer(item)), true});
      else if (is_text(item))
        path.push_back({std::string(graph_.text(item)), false});
      else
        fail_metadata(item, name, "its path in planner_data holds neither strings nor numbers alone");
    }
    if (path.empty()) fail_metadata(node, name, "its path in planner_data is empty");
    return path;
  }

  // Names sorted once: tensors are numbered from 0, objects after them.
  std::string_view entry_name(u32 entry) const {
    return entry < out_.tensors.size() ? out_.tensors[entry].name : out_.objects[entry - out_.tensors.size()].name;
  }
  u32 entry_position(u32 entry) const {
    return entry < out_.tensors.size() ? out_.tensors[entry].listed_at
                                       : out_.objects[entry - out_.tensors.size()].listed_at;
  }

  WhereAt listed(u32 position, std::string_view name) const { return {part_, position, std::string(name)}; }

  std::vector<u32> entries_by_name() const {
    std::vector<u32> order(out_.tensors.size() + out_.objects.size());
    std::iota(order.begin(), order.end(), u32{0});
    std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return entry_name(a) < entry_name(b); });
    for (std::size_t i = 1; i < order.size(); ++i)
      if (entry_name(order[i]) == entry_name(order[i - 1]))
        fail_metadata(listed(std::max(entry_position(order[i]), entry_position(order[i - 1])), entry_name(order[i])),
                      "is listed twice in state_dict_metadata");
    return order;
  }

  /// Walks entries and items, both sorted by name, side by side.
  void place_items() {
    const std::vector<u32> entries = entries_by_name();
    std::sort(stored_.begin(), stored_.end(), [](const StoredItem& a, const StoredItem& b) {
      const int order = a.name.compare(b.name);
      return order != 0 ? order < 0 : a.start < b.start;
    });
    auto at = stored_.begin();
    for (const u32 entry : entries) {
      const std::string_view name = entry_name(entry);
      if (at != stored_.end() && at->name < name) break;
      const auto first = at;
      while (at != stored_.end() && at->name == name) ++at;
      const std::span<const StoredItem> items(first, at);
      if (entry < out_.tensors.size())
        place_chunks(out_.tensors[entry], items);
      else
        place_object(out_.objects[entry - out_.tensors.size()], items);
    }
    if (at != stored_.end())
      fail_metadata(listed(at->item.listed_at, at->name), "has data in storage_data but is not in state_dict_metadata");
  }

  void place_object(DcpObject& object, std::span<const StoredItem> items) const {
    if (items.size() != 1)
      fail_metadata(listed(items.empty() ? object.listed_at : items.back().item.listed_at, object.name),
                    fmt::format("bytes with {} entries in storage_data, not one", items.size()));
    object.item = items[0].item;
  }

  static bool has_elements(const DcpChunk& chunk) { return std::ranges::find(chunk.shape, 0) == chunk.shape.end(); }

  /// Ranks without a part of a tensor write chunks without elements, whose start may be another chunk's: those need
  /// no item of their own.
  void place_chunks(DcpTensor& tensor, std::span<const StoredItem> items) const {
    std::stable_sort(tensor.chunks.begin(), tensor.chunks.end(), [](const DcpChunk& a, const DcpChunk& b) {
      return a.start != b.start ? a.start < b.start : has_elements(a) && !has_elements(b);
    });
    std::vector<DcpChunk> placed;
    placed.reserve(tensor.chunks.size());
    std::size_t next = 0;
    for (DcpChunk& chunk : tensor.chunks) {
      const bool again = !placed.empty() && placed.back().start == chunk.start;
      if (again && has_elements(chunk))
        fail_at(ErrorCode::ChunkOverlap, listed(chunk.listed_at, tensor.name),
                "'{}' has two chunks at {}; the other is listed at byte {}", tensor.name, shape_text(chunk.start),
                placed.back().listed_at);
      if (again) continue;
      const bool has_item = next < items.size() && items[next].has_start && items[next].start == chunk.start;
      if (!has_item && !has_elements(chunk)) continue;
      if (!has_item) fail_unmatched(tensor, chunk, items.subspan(next));
      chunk.item = items[next++].item;
      placed.push_back(std::move(chunk));
    }
    if (next != items.size())
      fail_metadata(listed(items[next].item.listed_at, tensor.name),
                    fmt::format("storage_data has {} at {}, which is no chunk or one already seen",
                                items[next].has_start ? "an item" : "bytes", shape_text(items[next].start)));
    tensor.chunks = std::move(placed);
  }

  [[noreturn]] void fail_unmatched(const DcpTensor& tensor, const DcpChunk& chunk,
                                   std::span<const StoredItem> left) const {
    const std::string next = left.empty() ? "" : fmt::format(" (the next is at {})", shape_text(left[0].start));
    fail_metadata(listed(chunk.listed_at, tensor.name),
                  fmt::format("storage_data has no item for the chunk at {}{}", shape_text(chunk.start), next));
  }

  PickleGraph graph_;
  const InputPart part_;
  /// The entry that is being read.
  PickleRef entry_ = kAbsent;
  DcpMetadata out_;
  PackedPaths paths_;
  std::vector<StoredItem> stored_;
  std::map<std::string_view, u32> files_;
  const i64 allowed_ = parser_allowance(std::ssize(graph_.source()));
  mutable i64 spent_ = 0;
};

/// An item with the entry that it is of.
struct OwnedItem {
  DcpItem item;
  std::string_view name;
};

}  // namespace

DcpMetadata read_dcp_metadata(std::string text, const std::string& file) {
  if (static_cast<i64>(text.size()) > kMaxDcpMetadataBytes)
    fail_at(ErrorCode::DcpMetadata, {file, kMaxDcpMetadataBytes}, "goes on to {} bytes; more than {} are not read",
            text.size(), kMaxDcpMetadataBytes);
  DcpMetadata metadata;
  PackedPaths paths;
  {
    MetadataReader reader(std::move(text), file);
    metadata = reader.read();
    paths = reader.take_paths();
  }
  for (auto& [name, path] : paths)
    metadata.paths.insert_or_assign(std::move(name), unpacked(std::exchange(path, std::string())));
  return metadata;
}

void check_item_overlaps(const DcpMetadata& metadata, const std::string& file) {
  std::vector<OwnedItem> items;
  for (const DcpTensor& tensor : metadata.tensors)
    for (const DcpChunk& chunk : tensor.chunks) items.push_back({chunk.item, tensor.name});
  for (const DcpObject& object : metadata.objects) items.push_back({object.item, object.name});
  std::sort(items.begin(), items.end(), [](const OwnedItem& a, const OwnedItem& b) {
    return std::tie(a.item.file, a.item.offset) < std::tie(b.item.file, b.item.offset);
  });
  for (std::size_t i = 1; i < items.size(); ++i) {
    const DcpItem& before = items[i - 1].item;
    const DcpItem& item = items[i].item;
    if (before.file == item.file && item.offset < before.offset + before.length)
      fail_at(ErrorCode::DcpItemOverlap, {file, item.listed_at, std::string(items[i].name)},
              "bytes [{}, {}) of {} are said to be '{}', and by byte {} that [{}, {}) are '{}'", item.offset,
              item.offset + item.length, metadata.files[item.file], items[i].name, before.listed_at, before.offset,
              before.offset + before.length, items[i - 1].name);
  }
}

}  // namespace glu_ckpt
