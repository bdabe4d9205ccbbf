#pragma once
/// The part that the Sources of all formats share: files that are not tensors, hints, records.

#include <map>
#include <string>
#include <vector>

#include "format/checkpoint_files.hpp"
#include "format/extras.hpp"
#include "format/record_file.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

class FileSource : public Source {
 public:
  explicit FileSource(const CheckpointFiles& files);

  const CheckpointInfo& info() const override { return info_; }

 protected:
  /// Throws RecordContradicts. `text` as for RecordMerger::add().
  void add_record(const Record& record, const InputPart& part, std::string_view text = {});
  /// Does the same with a record that is still a text. Throws RecordInvalid, too.
  void parse_record(std::string_view text, const InputPart& part);
  /// Takes over what the format itself does not hold.
  void take_extras(const Structure& extras);
  /// config.json, glu_ckpt.json and glu_ckpt.extras, once the shards' own records are in.
  void read_side_files();
  /// Throws Io where [offset, offset + bytes) is not within the tensor.
  const TensorRef& checked_range(std::size_t tensor, i64 offset, i64 bytes) const;
  /// Throws DuplicateKey; returns tensor numbers sorted by name.
  std::vector<u32> sorted_by_name() const;
  /// Both ways, and drops it: all that its hundred thousand names say is in the inventory then. Throws IndexStale,
  /// IndexIncomplete.
  void check_index(const std::vector<u32>& order);
  /// Throws IndexMissingShard where an index names it and it is not there.
  File open_shard(const std::string& name);
  /// Adds a file that tensors are read from to info().files.
  void add_opened(const File& file);
  /// A read past a file's end throws SourceChanged, for the file was whole when it was opened; so does damage in a file
  /// that was written to since.
  template <typename Read>
  void guard_read(const TensorRef& tensor, const Read& read) const;

  CheckpointFiles files_;
  CheckpointInfo info_;

 private:
  RecordMerger records_;

  [[noreturn]] void fail_shrunk(const Error& error, const TensorRef& tensor) const;
};

template <typename Read>
void FileSource::guard_read(const TensorRef& tensor, const Read& read) const {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::FileTruncated) fail_shrunk(error, tensor);
    // Bytes that somebody writes to are not damaged.
    if (error.code() == ErrorCode::ZipCrc) check_unchanged(info_);
    throw;
  }
}

}  // namespace glu_ckpt
