#include "format/safetensors_index.hpp"

#include <algorithm>
#include <optional>

#include "core/fail.hpp"
#include "core/json.hpp"
#include "format/inner_path.hpp"

namespace glu_ckpt {
namespace {

/// Other tools put what they like into "metadata".
constexpr std::size_t kMaxIndexDepth = 64;

struct RawEntry {
  std::string_view tensor;
  std::string_view shard;
  i64 offset;
};

class IndexReader {
 public:
  IndexReader(std::string_view text, const std::string& file) : part_(file), document_(text, kMaxIndexDepth) {}

  ShardIndex read() {
    if (const auto& fault = document_.fault())
      fail_at(ErrorCode::IndexJson, {part_, fault->offset}, "{}", fault->text());
    const JsonValue weight_map = find_weight_map();
    const std::vector<RawEntry> entries = read_entries(weight_map);
    if (entries.empty())
      fail_at(ErrorCode::IndexJson, at(weight_map), "weight_map is empty: the index names no tensor");
    check_unique(entries);
    ShardIndex index;
    index.files = shard_names(entries);
    index.entries.reserve(entries.size());
    for (const RawEntry& entry : entries) {
      const auto at = std::lower_bound(index.files.begin(), index.files.end(), entry.shard);
      index.entries.push_back(
          {std::string(entry.tensor), static_cast<u32>(at - index.files.begin()), static_cast<u32>(entry.offset)});
    }
    return index;
  }

 private:
  WhereAt at(const JsonValue& value) const { return {part_, value.offset()}; }
  WhereAt at(const RawEntry& entry) const { return {part_, entry.offset, std::string(entry.tensor)}; }

  JsonValue find_weight_map() const {
    const JsonValue root = document_.root();
    if (root.kind() != JsonKind::Object) fail_at(ErrorCode::IndexJson, at(root), "is not a JSON object");
    std::optional<JsonValue> found;
    for (const auto& [key, value] : root.members()) {
      if (key != "weight_map") continue;
      if (value.kind() != JsonKind::Object) fail_at(ErrorCode::IndexJson, at(value), "weight_map is not an object");
      if (found) fail_at(ErrorCode::DuplicateKey, at(value), "weight_map is there twice");
      found = value;
    }
    if (!found) fail_at(ErrorCode::IndexJson, at(root), "the object has no weight_map");
    return *found;
  }

  std::vector<RawEntry> read_entries(const JsonValue& weight_map) const {
    std::vector<RawEntry> entries;
    entries.reserve(weight_map.size());
    for (const auto& [tensor, value] : weight_map.members()) {
      const auto shard = value.get<std::string_view>();
      if (!shard)
        fail_at(ErrorCode::IndexJson, at(RawEntry{tensor, {}, value.offset()}),
                "the shard of tensor '{}' is not a string", tensor);
      entries.push_back({tensor, *shard, value.offset()});
    }
    std::sort(entries.begin(), entries.end(), [](const RawEntry& a, const RawEntry& b) {
      return a.tensor != b.tensor ? a.tensor < b.tensor : a.offset < b.offset;
    });
    return entries;
  }

  void check_unique(const std::vector<RawEntry>& entries) const {
    const auto twice = std::adjacent_find(entries.begin(), entries.end(),
                                          [](const RawEntry& a, const RawEntry& b) { return a.tensor == b.tensor; });
    if (twice == entries.end()) return;
    const RawEntry& second = *std::next(twice);
    fail_at(ErrorCode::DuplicateKey, at(second), "tensor '{}' is listed twice, in '{}' and '{}'", twice->tensor,
            twice->shard, second.shard);
  }

  std::vector<std::string> shard_names(const std::vector<RawEntry>& entries) const {
    // Each with the entry that names it first.
    std::map<std::string_view, const RawEntry*> shards;
    for (const RawEntry& entry : entries) {
      const RawEntry*& first = shards[entry.shard];
      if (first == nullptr || entry.offset < first->offset) first = &entry;
    }
    std::vector<std::string> names;
    for (const auto& [shard, entry] : shards) {
      check_shard_path(*entry);
      names.emplace_back(shard);
    }
    return names;
  }

  void check_shard_path(const RawEntry& raw) const {
    if (const std::string fault = inner_path_fault(raw.shard); !fault.empty())
      fail_at(ErrorCode::IndexPath, at(raw), "tensor '{}' is said to be in '{}', {}", raw.tensor, raw.shard, fault);
  }

  InputPart part_;
  JsonDocument document_;
};

}  // namespace

ShardIndex parse_index(std::string_view text, const std::string& file) { return IndexReader(text, file).read(); }

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
