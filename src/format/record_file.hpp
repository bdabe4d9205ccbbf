#pragma once
/// Provenance: `glu_ckpt.*` entries of a safetensors `__metadata__`, and glu_ckpt.json of a directory.
///
///   {"record_xxh3_128": "<32 hex>",
///    "version": "...", "naming": "...", ...,
///    "options": {"--glu": "interleaved:32", ...},
///    "metadata": {"note": "...", ...},
///    "files": [{"name": "model.safetensors", "bytes": 123456, "header_bytes": 1234, "header_xxh3_128": "<32 hex>",
///               "data_xxh3_128": "<32 hex>"}, ...]}
///
/// `metadata` is what safetensors files have in `__metadata__` besides; formats that have no place for it keep it here.
/// The header of a safetensors file is its length and its JSON, everything before the tensors. All bytes of any other
/// file are data. `data_xxh3_128` is the sum of core/data_hash.hpp. It is missing where parts of the file were cloned,
/// since nobody read those. `record_xxh3_128` is XXH3-128 of this text with zeros for its own digits, so that no bit of
/// it changes unseen; records of earlier versions lack it.

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

inline constexpr std::string_view kRecordFileName = "glu_ckpt.json";
inline constexpr i64 kMaxRecordBytes = i64{64} << 20;

struct FileRecord {
  std::string name;
  i64 bytes = 0;
  i64 header_bytes = 0;
  /// 32 hexadecimal digits each; empty where it is not known.
  std::string header_xxh3_128 = {};
  std::string data_xxh3_128 = {};
  bool operator==(const FileRecord&) const = default;
};

/// The content of glu_ckpt.json.
struct RecordFile {
  Record record;
  std::map<std::string, std::string> options;
  std::vector<FileRecord> files = {};
  std::map<std::string, std::string> metadata = {};
};

/// Throws RecordInvalid, also where the text does not fit the checksum in it. Fields that are not known and no strings
/// are ignored: a later version may write them. `part` is what the text was read from.
RecordFile parse_record_json(std::string_view text, const InputPart& part);
/// The byte of a record's text at which the field begins; none where the record lacks it.
std::optional<i64> record_offset(std::string_view text, std::string_view field);
/// The checksum first, then record fields, the options, the metadata where there is some, and one line for each file.
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
  /// The file that each key came from.
  std::map<std::string, std::string> origin_;
};

/// The record of a file that is all data.
FileRecord record_of_text(std::string_view text, const std::string& name);

/// Options of record_of_file().
struct FileReading {
  i64 header_bytes = 0;
  int jobs = 1;
  /// Gets every range that was read, from any of the threads.
  std::function<void(std::span<const std::byte>, i64 offset)> use = {};
};
/// The record of a file on the disk, which is read once. Where it is shorter than its header, it has no data.
FileRecord record_of_file(const File& file, const std::string& name, const FileReading& reading = {});

}  // namespace glu_ckpt
