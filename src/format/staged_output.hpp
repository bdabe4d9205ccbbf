#pragma once
/// An output of any format while it is made: its files in a staging directory, the journal, the checksums that ranks
/// exchange, the source's other files, glu_ckpt.json over all of them, and one rename.

#include <atomic>
#include <deque>
#include <set>

#include "format/output_format.hpp"
#include "format/record_file.hpp"
#include "io/sink.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt {

/// The note that one part of a run left at its end.
struct PartSums {
  std::vector<std::byte> checksums;
  std::vector<std::byte> moved;
};

/// A checkpoint being written into `<path>.partial`. Destroying it without commit() or keep() removes the staging
/// directory, if this run made it, and leaves `path` as it was; one that has joined leaves both.
class StagedOutput final : public DurableSink {
 public:
  /// `tensors` are grouped by shard and sorted by offset; every shard's data section is tiled.
  /// Throws OutputExists, OutputBusy, ResumeMismatch, Io, NoSpace, and what the formats throw.
  StagedOutput(const OutputOptions& options, const std::vector<OutputTensor>& tensors);

  void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override;
  i64 file_offset(std::size_t tensor) const override;
  void read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const override;
  void adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) override;
  /// Clones into OutputOptions::cloned_shards only.
  bool clone(std::size_t tensor, i64 offset, const FilePlace& from, i64 bytes) override;

  /// Returns true where OutputOptions::fingerprint is not empty.
  bool has_journal() const { return staged_.has_journal(); }
  /// Throws Io where there is none.
  Journal& journal();
  /// Returns whether an earlier run's files and journal were taken over.
  bool resumed() const { return staged_.resumed(); }
  /// Returns true where no write waits for a device.
  bool is_in_memory() const { return in_memory_; }
  /// Leaves the staging directory in place for a later run to resume, as is done without it where an earlier run's was
  /// taken over.
  void keep() { staged_.keep(); }
  /// Has the staging directory removed, whoever made it; not where it alone has what was in the source.
  void discard() {
    if (!holds_source_) staged_.discard();
  }
  /// From now on the staging directory stays whatever fails: files of the source are going to be removed.
  void hold_source() {
    holds_source_ = true;
    staged_.keep();
  }
  bool holds_source() const { return holds_source_; }
  std::filesystem::path source_file() const { return staged_.path() / StagedDir::kSourceName; }

  /// Blocks until all that was written, and the names of its files, are on the disk, and lets later reads come from
  /// there.
  void settle_on_disk();

  /// Ends one part of a run in parts: flushes the files, and notes durably what the process that commits has to know:
  /// export_sums(), and `moved`.
  void end_part(std::span<const std::byte> moved);
  /// Returns what that part has noted; nothing where it is not done.
  std::optional<PartSums> part_sums(i64 part) const;

  /// Flushes the files of a process that joined the run, and writes what finish() has to know of the bytes that went
  /// into them. Called once, after all writes.
  std::vector<std::byte> export_sums();
  /// Takes what another process exported. From then on the files are read as the other processes wrote them. Throws Io
  /// where it is damaged.
  void import_sums(std::span<const std::byte> sums);

  /// Writes the headers with the final record, flushes the files to the disk, then writes the index, the other files
  /// and glu_ckpt.json. Throws Io in a process that joined.
  void finish(const Record& record);
  /// Writes glu_ckpt.sha256 over all files of a finished output that is a directory.
  void write_manifest(const std::function<void(i64)>& on_progress);
  /// Returns where a finished but not committed checkpoint can be opened.
  std::filesystem::path staged_path() const;
  /// Flushes the directory and renames it to its final path. Throws Io in a process that joined.
  void commit();
  /// Bytes of all files written so far, headers included, and without those that were cloned.
  i64 bytes_written() const { return bytes_written_; }

 private:
  template <typename Bytes, typename Use>
  void for_each_piece(std::size_t tensor, i64 offset, Bytes bytes, const Use& use) const;
  std::filesystem::path root() const { return staged_.path() / format_->directory(); }
  /// The only file's name, where the output is one file.
  std::string file_name() const { return staged_.final_path().filename().string(); }
  void add_crc(const TensorPlace& place, std::span<const std::byte> part);
  void write_around(std::size_t crc);
  void write_headers(const Record& record);
  void require_owner(std::string_view action) const;
  void put_beside_files_below();
  std::filesystem::path place_of(const std::string& name) const;
  std::filesystem::path claim(const std::string& name);
  /// Names of files in the directory of the tensors.
  std::vector<std::string> names_inside() const;
  void make_subdirectories(const std::filesystem::path& relative);
  void open_file(const TensorFile& file);
  void remove_others();
  void remove_others_in(const std::filesystem::path& directory, const std::set<std::filesystem::path>& keep);
  void see_others();
  void publish_files();
  void write_text(const std::string& name, std::string_view text);
  void copy_extra_file(const ExtraFile& extra);
  void write_record_file(const Record& record);
  void write_tracker();

  OutputOptions options_;
  std::vector<OutputTensor> tensors_;
  bool single_file_;
  std::unique_ptr<OutputFormat> format_;
  StagedDir staged_;
  /// Holds pages of files between whose parts others are cloned.
  bool in_memory_;
  PageSpool spool_;
  HashMemory hash_memory_;
  /// The result of format_->files(), and the files themselves. A file and a checksum cannot move, hence deques.
  std::vector<TensorFile> planned_;
  mutable std::deque<OutputFile> files_;
  std::deque<PiecewiseCrc> crcs_;
  /// Says of each checksum whether this process or another has written what is around its bytes. It is no vector<bool>:
  /// threads set their own.
  std::vector<char> around_written_;
  /// Names of all files so far, relative to the checkpoint.
  std::set<std::string> names_;
  /// The lines of glu_ckpt.json, by name.
  std::map<std::string, FileRecord> records_;
  /// Relative to the staging directory.
  std::set<std::filesystem::path> subdirectories_;
  std::atomic<i64> bytes_written_{0};
  bool sees_others_ = false;
  bool holds_source_ = false;
};

inline std::unique_ptr<StagedOutput> create_output(const OutputOptions& options,
                                                   const std::vector<OutputTensor>& tensors) {
  return std::make_unique<StagedOutput>(options, tensors);
}

}  // namespace glu_ckpt
