#include "format/record_file.hpp"

#include <algorithm>
#include <array>
#include <mutex>

#include "core/data_hash.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/parallel.hpp"
#include "format/json_offset.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::string_view kPrefix = "glu_ckpt.";
constexpr std::string_view kUnknown = "unknown";
constexpr std::size_t kMaxRecordDepth = 64;
constexpr auto kKnownFields =
    std::to_array<std::string_view>({"version", "naming", "experts", "glu", "shared_glu", "optimizer_glu", "digest",
                                     "source_digest", "num_hidden_layers"});

bool is_known(std::string_view key) {
  return std::find(kKnownFields.begin(), kKnownFields.end(), key) != kKnownFields.end();
}

/// Reads a field that a later or earlier version may not write. False where it is of another type.
template <typename Stored, typename T>
bool read_optional(const element& item, std::string_view key, T& out) {
  Stored value;
  const auto error = item[key].get(value);
  if (!error) out = T(value);
  return !error || error == simdjson::NO_SUCH_FIELD;
}

class RecordReader {
 public:
  RecordReader(std::string_view text, const InputPart& part) : text_(text), part_(part) {}

  RecordFile read() {
    const JsonDocument document(text_, kMaxRecordDepth);
    if (document.fault() != JsonFault::None)
      fail_invalid(json_fault_offset(text_, document.fault(), kMaxRecordDepth), "is not JSON: " + document.message());
    object fields;
    if (document.root().get(fields)) fail_invalid(json_offset(text_, {}), "is not a JSON object");
    for (const auto& [key, value] : fields) {
      read_field(key, value);
      ++field_;
    }
    return std::move(content_);
  }

 private:
  [[noreturn]] void fail_invalid(i64 offset, std::string_view what) const {
    fail_at(ErrorCode::RecordInvalid, {part_, offset}, "{}", what);
  }

  /// The field that is being read.
  i64 field_at() const { return json_offset(text_, {field_}); }

  void read_options(const element& value) {
    object fields;
    if (value.get(fields)) fail_invalid(field_at(), "options is not an object");
    std::size_t number = 0;
    for (const auto& [key, item] : fields) {
      std::string_view text;
      if (item.get(text))
        fail_invalid(json_offset(text_, {field_, number}), fmt::format("option '{}' is not a string", key));
      content_.options.insert_or_assign(std::string(key), text);
      ++number;
    }
  }

  void read_files(const element& value) {
    simdjson::dom::array array;
    if (value.get(array)) fail_invalid(field_at(), "files is not an array");
    std::size_t number = 0;
    for (const element item : array) {
      FileRecord file;
      std::string_view name;
      const bool valid = !item["name"].get(name) && !item["bytes"].get(file.bytes) &&
                         read_optional<i64>(item, "header_bytes", file.header_bytes) &&
                         read_optional<std::string_view>(item, "header_xxh3_128", file.header_xxh3_128) &&
                         read_optional<std::string_view>(item, "data_xxh3_128", file.data_xxh3_128);
      file.name = name;
      if (!valid || file.header_bytes < 0 || file.header_bytes > file.bytes)
        fail_invalid(json_offset(text_, {field_, number}),
                     "files holds something else than {name, bytes, header_bytes, header_xxh3_128, data_xxh3_128}");
      content_.files.push_back(std::move(file));
      ++number;
    }
  }

  void read_field(std::string_view key, const element& value) {
    std::string_view text;
    if (key == "options") {
      content_.options.clear();
      read_options(value);
    } else if (key == "files") {
      content_.files.clear();
      read_files(value);
    } else if (!value.get(text)) {
      if (!content_.record.emplace(key, text).second) fail_invalid(field_at(), fmt::format("'{}' is there twice", key));
    } else if (is_known(key)) {
      fail_invalid(field_at(), fmt::format("'{}' is not a string", key));
    }
  }

  std::string_view text_;
  const InputPart& part_;
  RecordFile content_;
  std::size_t field_ = 0;
};

/// "name": "value" pairs on one line each; `indent` is the text before them.
void print_strings(std::string& out, const std::map<std::string, std::string>& fields, std::string_view indent) {
  const char* separator = "";
  for (const auto& [key, value] : fields) {
    out += fmt::format("{}{}{}: {}", separator, indent, json_string(key), json_string(value));
    separator = ",\n";
  }
}

void print_files(std::string& out, const std::vector<FileRecord>& files) {
  const char* separator = "";
  for (const FileRecord& file : files) {
    out += fmt::format("{}    {{\"name\": {}, \"bytes\": {}, \"header_bytes\": {}", separator, json_string(file.name),
                       file.bytes, file.header_bytes);
    if (!file.header_xxh3_128.empty())
      out += fmt::format(", \"header_xxh3_128\": {}", json_string(file.header_xxh3_128));
    if (!file.data_xxh3_128.empty()) out += fmt::format(", \"data_xxh3_128\": {}", json_string(file.data_xxh3_128));
    out += "}";
    separator = ",\n";
  }
}

}  // namespace

RecordFile parse_record_json(std::string_view text, const InputPart& part) { return RecordReader(text, part).read(); }

std::optional<i64> record_offset(std::string_view text, std::string_view field) {
  const JsonDocument document(text, kMaxRecordDepth);
  object fields;
  if (document.fault() != JsonFault::None || document.root().get(fields)) return std::nullopt;
  std::size_t number = 0;
  for (const auto& [key, value] : fields) {
    if (key == field) return json_offset(text, {number});
    ++number;
  }
  return std::nullopt;
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

void RecordMerger::add(const Record& record, const InputPart& part, std::string_view text) {
  for (const auto& [key, value] : record) {
    const auto [at, is_new] = merged_.emplace(key, value);
    if (!is_new && (value == at->second || value == kUnknown)) continue;
    if (!is_new && key != "version" && at->second != kUnknown)
      fail_at(ErrorCode::RecordContradicts, {part, record_offset(text, key)}, "says {} is '{}', but {} says '{}'", key,
              value, origin_[key], at->second);
    at->second = value;
    origin_[key] = part.file;
  }
}

FileRecord record_of_text(std::string_view text, const std::string& name) {
  return {name, std::ssize(text), 0, hex(hash128({}, 0)), hex(hash_data(std::as_bytes(std::span(text))))};
}

FileRecord record_of_file(const File& file, const std::string& name, const FileReading& reading) {
  const i64 bytes = file.size();
  const i64 header_bytes = std::min(reading.header_bytes, bytes);
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(std::max(1, reading.jobs)));
  const auto read = [&](i64 begin, i64 end, std::vector<std::byte>& buffer) {
    buffer.resize(static_cast<std::size_t>(std::min(end - begin, kDataBlockBytes)));
    file.pread_exact(buffer, begin);
    if (reading.use) reading.use(buffer, begin);
  };
  StreamHash header(0);
  for (i64 done = 0; done < header_bytes; done += kDataBlockBytes) {
    read(done, header_bytes, buffers[0]);
    header.update(buffers[0]);
  }
  Hash128 data;
  std::mutex mutex;
  const i64 blocks = (bytes - header_bytes + kDataBlockBytes - 1) / kDataBlockBytes;
  parallel_for(static_cast<std::size_t>(blocks), reading.jobs, [&](std::size_t block, int worker) {
    std::vector<std::byte>& buffer = buffers[static_cast<std::size_t>(worker)];
    read(header_bytes + static_cast<i64>(block) * kDataBlockBytes, bytes, buffer);
    const Hash128 sum = hash_data(buffer, static_cast<i64>(block));
    const std::lock_guard lock(mutex);
    data += sum;
  });
  return {name, bytes, header_bytes, hex(header.finish()), hex(data)};
}

}  // namespace glu_ckpt
