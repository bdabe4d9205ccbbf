#include "format/record_file.hpp"

#include <algorithm>
#include <array>
#include <mutex>

#include "core/data_hash.hpp"
#include "core/fail.hpp"
#include "core/hash.hpp"
#include "core/json.hpp"
#include "core/parallel.hpp"
#include "io/file.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kPrefix = "glu_ckpt.";
constexpr std::string_view kUnknown = "unknown";
constexpr std::string_view kChecksumField = "record_xxh3_128";
constexpr std::size_t kChecksumDigits = 32;
constexpr std::size_t kMaxRecordDepth = 64;
constexpr auto kKnownFields =
    std::to_array<std::string_view>({"version", "naming", "experts", "glu", "shared_glu", "optimizer_glu", "digest",
                                     "source_digest", "num_hidden_layers"});

bool is_known(std::string_view key) {
  return std::find(kKnownFields.begin(), kKnownFields.end(), key) != kKnownFields.end();
}

bool is_checksum(std::string_view text) {
  return text.size() == kChecksumDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

/// The checksum of a record's text in which it stands as zeros. What stands behind the JSON does not count.
std::string checksum_of(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  return hex(hash128(std::as_bytes(std::span(text)), 0));
}

/// Reads a field that a later or earlier version may not write. False where it is of another type.
template <typename Stored, typename T>
bool read_optional(const JsonValue& item, std::string_view key, T& out) {
  const auto field = item.find(key);
  if (!field) return true;
  const auto value = field->get<Stored>();
  if (value) out = *value;
  return value.has_value();
}

class RecordReader {
 public:
  explicit RecordReader(const InputPart& part) : part_(part) {}

  RecordFile read(std::string_view text) {
    const JsonDocument document(text, kMaxRecordDepth);
    if (const auto& fault = document.fault()) fail_invalid(fault->offset, fault->text());
    const JsonValue root = document.root();
    if (root.kind() != JsonKind::Object) fail_invalid(root.offset(), "is not a JSON object");
    bool is_first = true;
    for (const auto& [key, value] : root.members()) {
      // The first one's name may be what is damaged.
      const auto digits = value.get<std::string_view>();
      if (key == kChecksumField || (is_first && digits && is_checksum(*digits)))
        check_text(text, value.offset(), digits.value_or(std::string_view()));
      else
        read_field(key, value);
      is_first = false;
    }
    return std::move(content_);
  }

 private:
  [[noreturn]] void fail_invalid(i64 offset, std::string_view what) const {
    fail_at(ErrorCode::RecordInvalid, {part_, offset}, "{}", what);
  }

  /// Compares the text with the checksum in it, a field that begins at `offset`.
  void check_text(std::string_view text, i64 offset, std::string_view digits) const {
    std::string zeroed(text);
    const std::size_t at = text.find(digits, static_cast<std::size_t>(offset) + kChecksumField.size());
    if (is_checksum(digits) && at != text.npos) {
      zeroed.replace(at, digits.size(), kChecksumDigits, '0');
      if (checksum_of(zeroed) == digits) return;
    }
    fail_invalid(offset,
                 fmt::format("was changed since it was written: {} does not fit the rest. Find an intact copy; if the "
                             "change was meant, remove that field",
                             kChecksumField));
  }

  std::map<std::string, std::string> read_strings(std::string_view name, const JsonValue& object) const {
    if (object.kind() != JsonKind::Object) fail_invalid(object.offset(), fmt::format("{} is not an object", name));
    std::map<std::string, std::string> strings;
    for (const auto& [key, value] : object.members()) {
      const auto text = value.get<std::string_view>();
      if (!text) fail_invalid(value.offset(), fmt::format("'{}' of {} is not a string", key, name));
      strings.insert_or_assign(std::string(key), *text);
    }
    return strings;
  }

  void read_files(const JsonValue& files) {
    if (files.kind() != JsonKind::Array) fail_invalid(files.offset(), "files is not an array");
    for (const JsonValue item : files.items()) {
      FileRecord file;
      const auto name = item.find<std::string_view>("name");
      const auto bytes = item.find<i64>("bytes");
      const bool valid = name && bytes && read_optional<i64>(item, "header_bytes", file.header_bytes) &&
                         read_optional<std::string_view>(item, "header_xxh3_128", file.header_xxh3_128) &&
                         read_optional<std::string_view>(item, "data_xxh3_128", file.data_xxh3_128);
      if (!valid || file.header_bytes < 0 || file.header_bytes > *bytes)
        fail_invalid(item.offset(),
                     "files holds something else than {name, bytes, header_bytes, header_xxh3_128, data_xxh3_128}");
      file.name = *name;
      file.bytes = *bytes;
      content_.files.push_back(std::move(file));
    }
  }

  void read_field(std::string_view key, const JsonValue& value) {
    if (key == "options") {
      content_.options = read_strings(key, value);
    } else if (key == "metadata" && value.kind() == JsonKind::Object) {
      content_.metadata = read_strings(key, value);
    } else if (key == "files") {
      content_.files.clear();
      read_files(value);
    } else if (const auto text = value.get<std::string_view>()) {
      if (!content_.record.emplace(key, *text).second)
        fail_invalid(value.offset(), fmt::format("'{}' is there twice", key));
    } else if (is_known(key)) {
      fail_invalid(value.offset(), fmt::format("'{}' is not a string", key));
    }
  }

  const InputPart& part_;
  RecordFile content_;
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

RecordFile parse_record_json(std::string_view text, const InputPart& part) { return RecordReader(part).read(text); }

std::optional<i64> record_offset(std::string_view text, std::string_view field) {
  const JsonDocument document(text, kMaxRecordDepth);
  if (document.fault()) return std::nullopt;
  const auto found = document.root().find(field);
  return found ? std::optional(found->offset()) : std::nullopt;
}

std::string print_record_json(const RecordFile& content) {
  const std::size_t checksum_at = fmt::format("{{\n  \"{}\": \"", kChecksumField).size();
  std::string out = fmt::format("{{\n  \"{}\": \"{}\",\n", kChecksumField, std::string(kChecksumDigits, '0'));
  print_strings(out, content.record, "  ");
  if (!content.record.empty()) out += ",\n";
  out += "  \"options\": {";
  if (!content.options.empty()) out += '\n';
  print_strings(out, content.options, "    ");
  if (!content.options.empty()) out += "\n  ";
  if (!content.metadata.empty()) {
    out += "},\n  \"metadata\": {\n";
    print_strings(out, content.metadata, "    ");
    out += "\n  ";
  }
  out += "},\n  \"files\": [";
  if (!content.files.empty()) out += '\n';
  print_files(out, content.files);
  if (!content.files.empty()) out += "\n  ";
  out += "]\n}\n";
  return out.replace(checksum_at, kChecksumDigits, checksum_of(out));
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
