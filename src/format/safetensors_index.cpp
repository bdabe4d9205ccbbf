#include "format/safetensors_index.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/fail.hpp"
#include "core/json.hpp"

namespace glu_ckpt {
namespace {

using simdjson::dom::object;

/// Other tools put what they like into "metadata".
constexpr std::size_t kMaxDepth = 64;

/// An index comes with a download; it must not reach files outside its own directory.
void check_shard_path(std::string_view shard, std::string_view tensor, const std::string& file) {
  const std::filesystem::path path(shard);
  const bool climbs = std::find(path.begin(), path.end(), "..") != path.end();
  if (!shard.empty() && shard.find('\0') == shard.npos && path.is_relative() && path.has_filename() && !climbs) return;
  fail(ErrorCode::IndexPath, {file, std::string(tensor)},
       "{}: tensor '{}' is said to be in '{}'; a shard must be a relative path inside the directory", file, tensor,
       shard);
}

object find_weight_map(const JsonDocument& document, const std::string& file) {
  const Where where{file, {}};
  object root;
  if (document.root().get(root)) fail(ErrorCode::IndexJson, where, "{}: is not a JSON object", file);
  std::optional<object> found;
  for (const auto& [key, value] : root) {
    if (key != "weight_map") continue;
    object map;
    if (value.get(map)) fail(ErrorCode::IndexJson, where, "{}: weight_map is not an object", file);
    if (found) fail(ErrorCode::DuplicateKey, where, "{}: weight_map is there twice", file);
    found = map;
  }
  if (!found) fail(ErrorCode::IndexJson, where, "{}: has no weight_map", file);
  return *found;
}

struct RawEntry {
  std::string_view tensor;
  std::string_view shard;
};

std::vector<RawEntry> read_entries(const object& weight_map, const std::string& file) {
  std::vector<RawEntry> entries;
  entries.reserve(weight_map.size());
  for (const auto& [tensor, value] : weight_map) {
    std::string_view shard;
    if (value.get(shard))
      fail(ErrorCode::IndexJson, {file, std::string(tensor)}, "{}: the shard of tensor '{}' is not a string", file,
           tensor);
    entries.push_back({tensor, shard});
  }
  std::sort(entries.begin(), entries.end(), [](const RawEntry& a, const RawEntry& b) { return a.tensor < b.tensor; });
  return entries;
}

void check_unique(const std::vector<RawEntry>& entries, const std::string& file) {
  const auto twice = std::adjacent_find(entries.begin(), entries.end(),
                                        [](const RawEntry& a, const RawEntry& b) { return a.tensor == b.tensor; });
  if (twice == entries.end()) return;
  fail(ErrorCode::DuplicateKey, {file, std::string(twice->tensor)}, "{}: tensor '{}' is listed twice, in '{}' and '{}'",
       file, twice->tensor, twice->shard, std::next(twice)->shard);
}

std::vector<std::string> shard_names(const std::vector<RawEntry>& entries, const std::string& file) {
  std::vector<RawEntry> shards = entries;
  std::sort(shards.begin(), shards.end(), [](const RawEntry& a, const RawEntry& b) { return a.shard < b.shard; });
  std::vector<std::string> names;
  for (const RawEntry& entry : shards) {
    if (!names.empty() && names.back() == entry.shard) continue;
    check_shard_path(entry.shard, entry.tensor, file);
    names.emplace_back(entry.shard);
  }
  return names;
}

}  // namespace

ShardIndex parse_index(std::string_view text, const std::string& file) {
  const JsonDocument document(text, kMaxDepth);
  if (document.fault() != JsonFault::None)
    fail(ErrorCode::IndexJson, {file, {}}, "{}: is not JSON: {}", file, document.message());
  const std::vector<RawEntry> entries = read_entries(find_weight_map(document, file), file);
  check_unique(entries, file);

  ShardIndex index;
  index.files = shard_names(entries, file);
  index.entries.reserve(entries.size());
  for (const RawEntry& entry : entries) {
    const auto at = std::lower_bound(index.files.begin(), index.files.end(), entry.shard);
    index.entries.push_back({std::string(entry.tensor), static_cast<u32>(at - index.files.begin())});
  }
  return index;
}

std::string print_index(const std::map<std::string, std::string>& weight_map, i64 total_bytes, i64 total_parameters) {
  JsonWriter writer(2);
  writer.begin_object();
  writer.key("metadata").begin_object();
  writer.field("total_parameters", total_parameters).field("total_size", total_bytes);
  writer.end_object();
  writer.key("weight_map").begin_object();
  for (const auto& [tensor, shard] : weight_map) writer.field(tensor, shard);
  writer.end_object();
  return writer.end_object().text() + "\n";
}

}  // namespace glu_ckpt
