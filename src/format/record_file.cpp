#include "format/record_file.hpp"

#include <algorithm>
#include <array>

#include "core/fail.hpp"
#include "core/hash.hpp"
#include "core/json.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::string_view kPrefix = "glu_ckpt.";
constexpr std::string_view kUnknown = "unknown";
constexpr std::size_t kMaxDepth = 64;
constexpr i64 kBlockBytes = i64{1} << 20;
constexpr auto kKnownFields =
    std::to_array<std::string_view>({"version", "naming", "experts", "glu", "shared_glu", "optimizer_glu", "digest",
                                     "source_digest", "num_hidden_layers"});

bool is_known(std::string_view key) {
  return std::find(kKnownFields.begin(), kKnownFields.end(), key) != kKnownFields.end();
}

[[noreturn]] void fail_invalid(const std::string& file, std::string_view what) {
  fail(ErrorCode::RecordInvalid, {file, {}}, "{}: {}", file, what);
}

std::map<std::string, std::string> read_options(const element& value, const std::string& file) {
  object fields;
  if (value.get(fields)) fail_invalid(file, "options is not an object");
  std::map<std::string, std::string> options;
  for (const auto& [key, item] : fields) {
    std::string_view text;
    if (item.get(text)) fail_invalid(file, fmt::format("option '{}' is not a string", key));
    options.insert_or_assign(std::string(key), text);
  }
  return options;
}

FileHash read_file_hash(const element& value, const std::string& file) {
  std::string_view name;
  std::string_view hash;
  i64 bytes = 0;
  if (value["name"].get(name) || value["bytes"].get(bytes) || value["xxh3_128"].get(hash))
    fail_invalid(file, "files holds something else than {name, bytes, xxh3_128}");
  return {std::string(name), bytes, std::string(hash)};
}

std::vector<FileHash> read_files(const element& value, const std::string& file) {
  simdjson::dom::array array;
  if (value.get(array)) fail_invalid(file, "files is not an array");
  std::vector<FileHash> files;
  for (const element item : array) files.push_back(read_file_hash(item, file));
  return files;
}

void read_field(RecordFile& content, std::string_view key, const element& value, const std::string& file) {
  std::string_view text;
  if (key == "options") {
    content.options = read_options(value, file);
  } else if (key == "files") {
    content.files = read_files(value, file);
  } else if (!value.get(text)) {
    if (!content.record.emplace(key, text).second) fail_invalid(file, fmt::format("'{}' is there twice", key));
  } else if (is_known(key)) {
    fail_invalid(file, fmt::format("'{}' is not a string", key));
  }
}

/// "name": "value" pairs on one line each; `indent` is the text before them.
void print_strings(std::string& out, const std::map<std::string, std::string>& fields, std::string_view indent) {
  const char* separator = "";
  for (const auto& [key, value] : fields) {
    out += fmt::format("{}{}{}: {}", separator, indent, json_string(key), json_string(value));
    separator = ",\n";
  }
}

void print_files(std::string& out, const std::vector<FileHash>& files) {
  const char* separator = "";
  for (const FileHash& file : files) {
    out += fmt::format("{}    {{\"name\": {}, \"bytes\": {}, \"xxh3_128\": {}}}", separator, json_string(file.name),
                       file.bytes, json_string(file.xxh3_128));
    separator = ",\n";
  }
}

}  // namespace

RecordFile parse_record_json(std::string_view text, const std::string& file) {
  const JsonDocument document(text, kMaxDepth);
  if (document.fault() != JsonFault::None) fail_invalid(file, "is not JSON: " + document.message());
  object fields;
  if (document.root().get(fields)) fail_invalid(file, "is not a JSON object");
  RecordFile content;
  for (const auto& [key, value] : fields) read_field(content, key, value, file);
  return content;
}

std::string print_record_json(const RecordFile& content) {
  std::string out = "{\n";
  print_strings(out, content.record, "  ");
  if (!content.record.empty()) out += ",\n";
  out += "  \"options\": {";
  if (!content.options.empty()) out += '\n';
  print_strings(out, content.options, "    ");
  if (!content.options.empty()) out += "\n  ";
  out += "},\n  \"files\": [";
  if (!content.files.empty()) out += '\n';
  print_files(out, content.files);
  if (!content.files.empty()) out += "\n  ";
  return out + "]\n}\n";
}

Record take_record(std::map<std::string, std::string>& metadata) {
  Record record;
  for (auto it = metadata.lower_bound(std::string(kPrefix)); it != metadata.end() && it->first.starts_with(kPrefix);) {
    record.emplace(it->first.substr(kPrefix.size()), it->second);
    it = metadata.erase(it);
  }
  return record;
}

void put_record(std::map<std::string, std::string>& metadata, const Record& record) {
  for (const auto& [key, value] : record) metadata.insert_or_assign(std::string(kPrefix) + key, value);
}

void RecordMerger::add(const Record& record, const std::string& file) {
  for (const auto& [key, value] : record) {
    const auto [at, is_new] = merged_.emplace(key, value);
    if (!is_new && (value == at->second || value == kUnknown)) continue;
    if (!is_new && key != "version" && at->second != kUnknown)
      fail(ErrorCode::RecordContradicts, {file, {}}, "{}: says {} is '{}', but {} says '{}'", file, key, value,
           origin_[key], at->second);
    at->second = value;
    origin_[key] = file;
  }
}

FileHash hash_file(const std::filesystem::path& path, const std::string& name) {
  const File file = File::open_read(path);
  const i64 bytes = file.size();
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(bytes, kBlockBytes)));
  StreamHash hash;
  for (i64 done = 0; done < bytes;) {
    const auto part = std::span(block).first(static_cast<std::size_t>(std::min(bytes - done, kBlockBytes)));
    file.pread_exact(part, done);
    hash.update(part);
    done += static_cast<i64>(part.size());
  }
  return {name, bytes, hex(hash.finish())};
}

}  // namespace glu_ckpt
