#include "format/extras.hpp"

#include <algorithm>

#include "core/crc32.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "format/torch_tree.hpp"
#include "format/zip_layout.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kJsonRecord = "extras.json";
constexpr std::size_t kMaxExtrasDepth = 16;
constexpr i64 kMaxExtrasJsonBytes = i64{256} << 20;

void print_path(JsonWriter& json, const KeyPath& path) {
  json.begin_array();
  for (const PathKey& key : path) {
    if (key.is_index)
      json.value(static_cast<i64>(std::stoll(key.text)));
    else
      json.value(key.text);
  }
  json.end_array();
}

std::string print_json(const Structure& structure, const std::vector<TorchTree>& trees,
                       const std::map<std::string, KeyPath>& paths) {
  JsonWriter json;
  json.begin_object().field("version", 1).key("trees").begin_array();
  for (const TorchTree& tree : trees)
    json.begin_object().field("file", tree.file).field("prefix", tree.prefix).end_object();
  json.end_array().key("objects").begin_array();
  for (const NamedObject& object : structure.objects) json.value(object.name);
  json.end_array().key("paths").begin_object();
  for (const auto& [name, path] : paths) print_path(json.key(name), path);
  json.end_object();
  json.field("metadata_json", structure.metadata_json).field("integrity", structure.has_integrity);
  return json.end_object().text();
}

/// A path below a directory, written plainly: anything else could make files elsewhere.
bool is_plain_path(std::string_view path) {
  if (path.empty() || path.find('\0') != path.npos || path.find('\\') != path.npos) return false;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

/// An open extras zip; reads objects from it.
class ExtrasZip final : public ObjectStore {
 public:
  ExtrasZip(ReadAt read, i64 bytes, InputPart part) : read_(std::move(read)), part_(std::move(part)) {
    zip_ = read_zip_directory(read_, bytes, part_);
  }

  const InputPart& part() const { return part_; }
  const ZipDirectory& zip() const { return zip_; }

  std::vector<std::byte> read(std::size_t number) const override {
    const ZipRecord& record = *zip_.find(fmt::format("object/{}", number));
    std::vector<std::byte> bytes(static_cast<std::size_t>(record.bytes));
    read_(bytes, record.offset);
    check_crc(record, bytes);
    return bytes;
  }

  /// `wanted` is what says that there is such a record.
  std::string read_text(const std::string& record, const WhereAt& wanted) const {
    const ZipRecord* found = zip_.find(record);
    if (found == nullptr) fail_at(ErrorCode::ExtrasInvalid, wanted, "record '{}' is missing", record);
    if (found->bytes > kMaxExtrasJsonBytes)
      fail_at(ErrorCode::ExtrasInvalid, {part_, found->offset}, "record '{}' has {} bytes; at most {} are read", record,
              found->bytes, kMaxExtrasJsonBytes);
    std::string text(static_cast<std::size_t>(found->bytes), '\0');
    read_(std::as_writable_bytes(std::span(text)), found->offset);
    check_crc(*found, std::as_bytes(std::span(text)));
    return text;
  }

 private:
  void check_crc(const ZipRecord& record, std::span<const std::byte> bytes) const {
    if (crc32_of(bytes) != record.crc)
      fail_at(ErrorCode::ZipCrc, {part_, record.offset}, "record '{}' does not have the checksum that the zip gives",
              record.name);
  }

  ReadAt read_;
  InputPart part_;
  ZipDirectory zip_;
};

/// Reads extras.json. Errors give the position of the member or item that they are about.
class ListingReader {
 public:
  explicit ListingReader(std::shared_ptr<const ExtrasZip> extras) : extras_(std::move(extras)) {}

  Structure read(std::string_view text) {
    const JsonDocument document(text, kMaxExtrasDepth);
    if (const auto& fault = document.fault()) fail_invalid(fault->offset, fault->text());
    const JsonValue root = document.root();
    if (root.kind() != JsonKind::Object) fail_invalid(root.offset(), "is not a JSON object");
    const auto trees = root.find("trees");
    const auto objects = root.find("objects");
    const auto paths = root.find("paths");
    const auto metadata = root.find<std::string_view>("metadata_json");
    const auto integrity = root.find<bool>("integrity");
    if (!trees || trees->kind() != JsonKind::Array || !objects || objects->kind() != JsonKind::Array || !paths ||
        paths->kind() != JsonKind::Object || !metadata || !integrity)
      fail_invalid(root.offset(), "lacks trees, objects, paths, metadata_json or integrity");
    structure_.metadata_json = *metadata;
    structure_.has_integrity = *integrity;
    for (const JsonValue item : trees->items()) read_tree(item);
    for (const JsonValue item : objects->items()) read_object(item);
    for (const auto& [key, steps] : paths->members()) structure_.paths.emplace(std::string(key), read_path(steps));
    return std::move(structure_);
  }

 private:
  [[noreturn]] void fail_invalid(i64 offset, std::string_view what) const {
    fail_at(ErrorCode::ExtrasInvalid, at(offset), "{}: {}", kJsonRecord, what);
  }

  WhereAt at(i64 offset) const { return {extras_->part(), extras_->zip().find(kJsonRecord)->offset + offset}; }

  void read_tree(const JsonValue& item) {
    std::vector<TorchTree>& trees = structure_.trees;
    const auto file = item.find<std::string_view>("file");
    const auto prefix = item.find<std::string_view>("prefix");
    if (!file || !prefix) fail_invalid(item.offset(), "a tree lacks file or prefix");
    if (!is_plain_path(*file))
      fail_invalid(item.offset(), "a tree's file is not a path below the checkpoint's directory");
    TorchTree tree;
    tree.file = *file;
    tree.prefix = *prefix;
    const std::string record = fmt::format("tree/{}", trees.size());
    tree.pickle = extras_->read_text(record, at(item.offset()));
    tree.from = extras_->part();
    tree.from.begin += extras_->zip().find(record)->offset;
    trees.push_back(std::move(tree));
  }

  void read_object(const JsonValue& item) {
    std::vector<NamedObject>& objects = structure_.objects;
    const auto name = item.get<std::string_view>();
    const ZipRecord* record = extras_->zip().find(fmt::format("object/{}", objects.size()));
    if (!name || record == nullptr) fail_invalid(item.offset(), "an object lacks its name or its record");
    objects.push_back({std::string(*name), record->bytes, extras_, objects.size()});
  }

  KeyPath read_path(const JsonValue& steps) const {
    if (steps.kind() != JsonKind::Array) fail_invalid(steps.offset(), "a path is no array");
    KeyPath path;
    for (const JsonValue step : steps.items()) {
      if (const auto text = step.get<std::string_view>())
        path.push_back({std::string(*text), false});
      else if (const auto index = step.get<i64>())
        path.push_back({fmt::format("{}", *index), true});
      else
        fail_invalid(step.offset(), "a path holds something else than keys and indices");
    }
    return path;
  }

  std::shared_ptr<const ExtrasZip> extras_;
  Structure structure_;
};

}  // namespace

Structure read_extras(ReadAt read, i64 bytes, InputPart part) {
  const auto extras = std::make_shared<const ExtrasZip>(std::move(read), bytes, std::move(part));
  const std::string json = extras->read_text(std::string(kJsonRecord), {extras->part(), extras->zip().offset});
  return ListingReader(extras).read(json);
}

Structure open_extras(const std::filesystem::path& path) {
  const auto file = std::make_shared<File>(File::open_read(path));
  const ReadAt read = [file](std::span<std::byte> out, i64 offset) { file->pread_exact(out, offset); };
  return read_extras(read, file->size(), path.string());
}

bool needs_extras(const Structure& structure, Format format) {
  const bool dist = !structure.objects.empty() || !structure.paths.empty() || !structure.metadata_json.empty() ||
                    structure.has_integrity;
  return (format != Format::Torch && !structure.trees.empty()) || (format != Format::TorchDist && dist);
}

std::vector<std::size_t> tree_of_outputs(const std::vector<TorchTree>& trees,
                                         const std::vector<OutputTensor>& outputs) {
  std::vector<std::size_t> found(outputs.size(), trees.size());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (std::size_t t = 0; t < trees.size(); ++t)
      if (outputs[i].name.starts_with(trees[t].prefix) &&
          (found[i] == trees.size() || trees[t].prefix.size() > trees[found[i]].prefix.size()))
        found[i] = t;
  return found;
}

std::vector<TorchTree> renamed_trees(const std::vector<TorchTree>& trees, const std::vector<OutputTensor>& outputs) {
  const std::vector<std::size_t> tree_of = tree_of_outputs(trees, outputs);
  std::vector<std::vector<std::size_t>> members(trees.size());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (tree_of[i] < trees.size()) members[tree_of[i]].push_back(i);
  std::vector<TorchTree> renamed;
  for (std::size_t t = 0; t < trees.size(); ++t) renamed.push_back(rename_in_tree(trees[t], outputs, members[t]));
  return renamed;
}

std::map<std::string, KeyPath> renamed_paths(const std::map<std::string, KeyPath>& paths,
                                             const std::vector<OutputTensor>& outputs) {
  std::map<std::string, KeyPath> renamed;
  for (const OutputTensor& output : outputs) {
    const auto found = paths.find(output.from);
    if (found == paths.end() || found->second.empty()) continue;
    KeyPath path = found->second;
    if (output.name != output.from) path.back() = {renamed_key(path.back().text, output.from, output.name), false};
    renamed.emplace(output.name, std::move(path));
  }
  return renamed;
}

std::string print_extras(const Structure& structure, const std::vector<OutputTensor>& outputs) {
  const std::vector<TorchTree> trees = renamed_trees(structure.trees, outputs);
  std::map<std::string, KeyPath> paths = renamed_paths(structure.paths, outputs);
  for (const NamedObject& object : structure.objects)
    if (const auto path = structure.paths.find(object.name); path != structure.paths.end()) paths.insert(*path);
  std::vector<std::pair<std::string, std::string>> records;
  records.emplace_back(kJsonRecord, print_json(structure, trees, paths));
  for (std::size_t t = 0; t < trees.size(); ++t) records.emplace_back(fmt::format("tree/{}", t), trees[t].pickle);
  for (std::size_t i = 0; i < structure.objects.size(); ++i) {
    const std::vector<std::byte> bytes = structure.objects[i].read();
    records.emplace_back(fmt::format("object/{}", i),
                         std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  ZipLayout layout("extras");
  for (const auto& [name, text] : records) layout.add(name, static_cast<i64>(text.size()));
  std::string zip;
  std::vector<u32> crcs;
  for (std::size_t i = 0; i < records.size(); ++i) {
    crcs.push_back(crc32_of(std::as_bytes(std::span(records[i].second))));
    zip += layout.header(i) + records[i].second + layout.descriptor(i, crcs[i]);
  }
  return zip + layout.directory(crcs);
}

}  // namespace glu_ckpt
