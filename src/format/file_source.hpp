#pragma once
/// What the Sources of all formats have in common: files that are not tensors, hints, records.

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
  explicit FileSource(const CheckpointFiles& files) : files_(files) {}

  Format format() const override { return files_.format; }
  const Inventory& inventory() const override { return inventory_; }
  const ModelHints& hints() const override { return hints_; }
  const Record& record() const override { return records_.merged(); }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<ExtraFile>& extra_files() const override { return files_.extra_files; }
  std::vector<std::string> left_out() const override { return files_.left_out; }
  const std::filesystem::path& path() const override { return files_.path; }
  i64 file_bytes() const override { return file_bytes_; }
  const Structure& structure() const override { return structure_; }
  /// Objects that came out of extras; a torch-dist Source reads its own.
  std::vector<std::byte> read_object(std::size_t object) const override;
  void check_unchanged() const override;
  std::string identity() const override;

 protected:
  /// A record of its own, read from `part`. Throws RecordInvalid, RecordContradicts.
  void add_record(std::string_view text, const InputPart& part);
  /// Takes over what the format itself does not hold.
  void take_extras(Extras extras);
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
  /// Has check_unchanged() look at a file that tensors are read from.
  void watch(const File& file, const std::string& name);
  /// What a read of an open file throws, as what it means: the file was whole when it was opened.
  template <typename Read>
  void guard_read(const TensorRef& tensor, const Read& read) const;

  CheckpointFiles files_;
  Inventory inventory_;
  ModelHints hints_;
  RecordMerger records_;
  std::map<std::string, std::string> metadata_;
  Structure structure_;
  i64 file_bytes_ = 0;

 private:
  struct Watched {
    std::filesystem::path path;
    std::string name;
    FileIdentity identity;
  };

  std::vector<Watched> watched_;
  Extras extras_;

  [[noreturn]] void fail_shrunk(const Error& error, const TensorRef& tensor) const;
};

template <typename Read>
void FileSource::guard_read(const TensorRef& tensor, const Read& read) const {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::FileTruncated) throw;
    fail_shrunk(error, tensor);
  }
}

}  // namespace glu_ckpt
