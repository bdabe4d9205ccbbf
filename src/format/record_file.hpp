#pragma once
/// Provenance: `glu_ckpt.*` entries of a safetensors `__metadata__`, and glu_ckpt.json of a directory.
///
///   {"version": "...", "naming": "...", ...,
///    "options": {"--glu": "interleaved:32", ...},
///    "files": [{"name": "model.safetensors", "bytes": 123, "xxh3_128": "<32 hex>"}, ...]}
///
/// A file of which parts were cloned has no xxh3_128: nobody read them.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

inline constexpr std::string_view kRecordFileName = "glu_ckpt.json";
inline constexpr i64 kMaxRecordBytes = i64{64} << 20;

struct FileHash {
  std::string name;
  i64 bytes = 0;
  /// 32 hexadecimal digits; empty where it is not known.
  std::string xxh3_128;
  bool operator==(const FileHash&) const = default;
};

/// What glu_ckpt.json holds.
struct RecordFile {
  Record record;
  std::map<std::string, std::string> options;
  std::vector<FileHash> files;
};

/// Throws RecordInvalid. Fields that are not known and no strings are ignored: a later version may write them.
/// `part` is what the text was read from.
RecordFile parse_record_json(std::string_view text, const InputPart& part);
/// Where the field stands in the text of a record; none where it does not.
std::optional<i64> record_offset(std::string_view text, std::string_view field);
/// Record fields first, then the options, then one line for each file.
std::string print_record_json(const RecordFile& content);

/// The `glu_ckpt.*` entries of a `__metadata__`, which are taken out of it.
Record take_record(std::map<std::string, std::string>& metadata);
/// The other way round.
void put_record(std::map<std::string, std::string>& metadata, const Record& record);

/// Several records of one checkpoint as one.
class RecordMerger {
 public:
  /// Throws RecordContradicts where two answers differ. "unknown" is no answer, and a version only says
  /// who wrote last, so neither contradicts.
  /// `text` is that of the record where it is one of its own, and `part` what it was read from.
  void add(const Record& record, const InputPart& part, std::string_view text = {});
  const Record& merged() const { return merged_; }

 private:
  Record merged_;
  /// Which file each key came from.
  std::map<std::string, std::string> origin_;
};

FileHash hash_text(std::string_view text, const std::string& name);
/// Reads the file once, in blocks.
FileHash hash_file(const std::filesystem::path& path, const std::string& name);

}  // namespace glu_ckpt
