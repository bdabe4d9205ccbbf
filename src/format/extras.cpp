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

using simdjson::dom::element;

constexpr std::string_view kJsonRecord = "extras.json";
constexpr i64 kMaxJsonBytes = i64{256} << 20;

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

}  // namespace

Extras::Extras(ReadAt read, i64 bytes, std::string name) : read_(std::move(read)), name_(std::move(name)) {
  zip_ = read_zip_directory(read_, bytes, name_);
  parse(read_text(std::string(kJsonRecord)));
}

Extras Extras::open(const std::filesystem::path& path) {
  const auto file = std::make_shared<File>(File::open_read(path));
  return {[file](std::span<std::byte> out, i64 offset) { file->pread_exact(out, offset); }, file->size(),
          path.string()};
}

std::string Extras::read_text(const std::string& record) const {
  const ZipRecord* found = zip_.find(record);
  if (found == nullptr || found->bytes > kMaxJsonBytes)
    fail(ErrorCode::ExtrasInvalid, {name_, {}}, "{}: record '{}' is missing or too large", name_, record);
  std::string text(static_cast<std::size_t>(found->bytes), '\0');
  read_(std::as_writable_bytes(std::span(text)), found->offset);
  if (crc32_of(std::as_bytes(std::span(text))) != found->crc)
    fail(ErrorCode::ZipCrc, {name_, {}}, "{}: record '{}' does not have the checksum that the zip gives", name_,
         record);
  return text;
}

void Extras::parse(const std::string& text) {
  const auto invalid = [&](std::string_view what) {
    fail(ErrorCode::ExtrasInvalid, {name_, {}}, "{}: {}: {}", name_, kJsonRecord, what);
  };
  const JsonDocument document(text, 16);
  if (document.fault() != JsonFault::None) invalid("is not JSON: " + document.message());
  const element root = document.root();
  simdjson::dom::array trees;
  simdjson::dom::array objects;
  simdjson::dom::object paths;
  std::string_view metadata;
  if (root["trees"].get(trees) || root["objects"].get(objects) || root["paths"].get(paths) ||
      root["metadata_json"].get(metadata) || root["integrity"].get(structure_.has_integrity))
    invalid("lacks trees, objects, paths, metadata_json or integrity");
  structure_.metadata_json = metadata;
  for (const element tree : trees) {
    std::string_view file;
    std::string_view prefix;
    if (tree["file"].get(file) || tree["prefix"].get(prefix)) invalid("a tree lacks file or prefix");
    if (!is_plain_path(file)) invalid("a tree's file is not a path below the checkpoint's directory");
    const std::string record = fmt::format("tree/{}", structure_.trees.size());
    structure_.trees.push_back({std::string(file), std::string(prefix), read_text(record)});
  }
  for (const element object : objects) {
    std::string_view object_name;
    const ZipRecord* record = zip_.find(fmt::format("object/{}", structure_.objects.size()));
    if (object.get(object_name) || record == nullptr) invalid("an object lacks its name or its record");
    structure_.objects.push_back({std::string(object_name), record->bytes});
  }
  for (const auto& [key, steps] : paths) {
    KeyPath path;
    simdjson::dom::array array;
    if (steps.get(array)) invalid("a path is no array");
    for (const element step : array) {
      std::string_view key_text;
      i64 index = 0;
      if (!step.get(key_text))
        path.push_back({std::string(key_text), false});
      else if (!step.get(index))
        path.push_back({fmt::format("{}", index), true});
      else
        invalid("a path holds something else than keys and indices");
    }
    structure_.paths.emplace(std::string(key), std::move(path));
  }
}

std::vector<std::byte> Extras::read_object(std::size_t object) const {
  const ZipRecord& record = *zip_.find(fmt::format("object/{}", object));
  std::vector<std::byte> bytes(static_cast<std::size_t>(record.bytes));
  read_(bytes, record.offset);
  if (crc32_of(bytes) != record.crc)
    fail(ErrorCode::ZipCrc, {name_, {}}, "{}: object '{}' does not have the checksum that the zip gives", name_,
         structure_.objects.at(object).name);
  return bytes;
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

std::string print_extras(const Source& source, const std::vector<OutputTensor>& outputs) {
  const Structure& structure = source.structure();
  const std::vector<TorchTree> trees = renamed_trees(structure.trees, outputs);
  std::map<std::string, KeyPath> paths = renamed_paths(structure.paths, outputs);
  for (const NamedObject& object : structure.objects)
    if (const auto path = structure.paths.find(object.name); path != structure.paths.end()) paths.insert(*path);
  std::vector<std::pair<std::string, std::string>> records;
  records.emplace_back(kJsonRecord, print_json(structure, trees, paths));
  for (std::size_t t = 0; t < trees.size(); ++t) records.emplace_back(fmt::format("tree/{}", t), trees[t].pickle);
  for (std::size_t i = 0; i < structure.objects.size(); ++i) {
    const std::vector<std::byte> bytes = source.read_object(i);
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
