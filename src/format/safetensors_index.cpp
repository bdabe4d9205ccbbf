#include "format/safetensors_index.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/fail.hpp"
#include "core/json.hpp"
#include "format/json_offset.hpp"

namespace glu_ckpt {
namespace {

using simdjson::dom::object;

/// Other tools put what they like into "metadata".
constexpr std::size_t kMaxIndexDepth = 64;

struct RawEntry {
  std::string_view tensor;
  std::string_view shard;
  u32 number;
};

class IndexReader {
 public:
  IndexReader(std::string_view text, const std::string& file)
      : text_(text), part_(file), document_(text, kMaxIndexDepth) {}

  ShardIndex read() {
    if (document_.fault() != JsonFault::None)
      fail_at(ErrorCode::IndexJson, {part_, json_fault_offset(text_, document_.fault(), kMaxIndexDepth)},
              "is not JSON: {}", document_.message());
    const std::vector<RawEntry> entries = read_entries(find_weight_map());
    check_unique(entries);
    ShardIndex index;
    index.weight_map = static_cast<u32>(map_number_);
    index.files = shard_names(entries);
    index.entries.reserve(entries.size());
    for (const RawEntry& entry : entries) {
      const auto at = std::lower_bound(index.files.begin(), index.files.end(), entry.shard);
      index.entries.push_back({std::string(entry.tensor), static_cast<u32>(at - index.files.begin()), entry.number});
    }
    return index;
  }

 private:
  WhereAt member(std::size_t number) const { return {part_, json_offset(text_, {number})}; }
  WhereAt entry(std::size_t number, std::string_view tensor) const {
    return {part_, json_offset(text_, {map_number_, number}), std::string(tensor)};
  }

  object find_weight_map() {
    object root;
    if (document_.root().get(root))
      fail_at(ErrorCode::IndexJson, {part_, json_offset(text_, {})}, "is not a JSON object");
    std::optional<object> found;
    std::size_t number = 0;
    for (const auto& [key, value] : root) {
      const std::size_t here = number++;
      if (key != "weight_map") continue;
      object map;
      if (value.get(map)) fail_at(ErrorCode::IndexJson, member(here), "weight_map is not an object");
      if (found) fail_at(ErrorCode::DuplicateKey, member(here), "weight_map is there twice");
      found = map;
      map_number_ = here;
    }
    if (!found) fail_at(ErrorCode::IndexJson, {part_, json_offset(text_, {})}, "the object has no weight_map");
    return *found;
  }

  std::vector<RawEntry> read_entries(const object& weight_map) const {
    std::vector<RawEntry> entries;
    entries.reserve(weight_map.size());
    for (const auto& [tensor, value] : weight_map) {
      std::string_view shard;
      if (value.get(shard))
        fail_at(ErrorCode::IndexJson, entry(entries.size(), tensor), "the shard of tensor '{}' is not a string",
                tensor);
      entries.push_back({tensor, shard, static_cast<u32>(entries.size())});
    }
    std::sort(entries.begin(), entries.end(), [](const RawEntry& a, const RawEntry& b) {
      return a.tensor != b.tensor ? a.tensor < b.tensor : a.number < b.number;
    });
    return entries;
  }

  void check_unique(const std::vector<RawEntry>& entries) const {
    const auto twice = std::adjacent_find(entries.begin(), entries.end(),
                                          [](const RawEntry& a, const RawEntry& b) { return a.tensor == b.tensor; });
    if (twice == entries.end()) return;
    const RawEntry& second = *std::next(twice);
    fail_at(ErrorCode::DuplicateKey, entry(second.number, second.tensor),
            "tensor '{}' is listed twice, in '{}' and '{}'", twice->tensor, twice->shard, second.shard);
  }

  std::vector<std::string> shard_names(const std::vector<RawEntry>& entries) const {
    std::vector<RawEntry> shards = entries;
    std::sort(shards.begin(), shards.end(), [](const RawEntry& a, const RawEntry& b) {
      return a.shard != b.shard ? a.shard < b.shard : a.number < b.number;
    });
    std::vector<std::string> names;
    for (const RawEntry& shard : shards) {
      if (!names.empty() && names.back() == shard.shard) continue;
      check_shard_path(shard);
      names.emplace_back(shard.shard);
    }
    return names;
  }

  /// An index comes with a download; it must not reach files outside its own directory.
  void check_shard_path(const RawEntry& raw) const {
    const std::string_view shard = raw.shard;
    const std::filesystem::path path(shard);
    const bool climbs = std::find(path.begin(), path.end(), "..") != path.end();
    if (!shard.empty() && shard.find('\0') == shard.npos && path.is_relative() && path.has_filename() && !climbs)
      return;
    fail_at(ErrorCode::IndexPath, entry(raw.number, raw.tensor),
            "tensor '{}' is said to be in '{}'; a shard must be a relative path inside the directory", raw.tensor,
            shard);
  }

  std::string_view text_;
  InputPart part_;
  JsonDocument document_;
  std::size_t map_number_ = 0;
};

}  // namespace

ShardIndex parse_index(std::string_view text, const std::string& file) { return IndexReader(text, file).read(); }

i64 offset_of_entry(std::string_view text, const ShardIndex& index, const ShardIndex::Entry& entry) {
  return json_offset(text, {index.weight_map, entry.number});
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
