#pragma once
/// What every Sink does the same way: large files and small ones in a staging directory, the source's other files
/// beside them, glu_ckpt.json over all of them, one rename.

#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "format/record_file.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "io/output_file.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt {

/// True where the path names one file rather than a directory.
bool names_single_file(const std::filesystem::path& path);

class StagedCheckpoint {
 public:
  /// `inner` is a directory inside the output that holds everything, e.g. "iter_0000100", or empty.
  StagedCheckpoint(const SinkOptions& options, const std::string& inner);

  bool single_file() const { return single_file_; }
  /// The only file's name, where the output is one file.
  std::string file_name() const { return staged_.final_path().filename().string(); }
  /// False in a process that joined: it writes tensors, and nothing else.
  bool owns() const { return options_.mode != SinkMode::Join; }
  /// Throws Io unless owns(): `action` is what only the run's first process does.
  void require_owner(std::string_view action) const;

  /// Opens a file for tensors, of a name relative to the checkpoint; its space is reserved. It stays where it is.
  OutputFile& open_file(const std::string& name, i64 bytes, i64 header_bytes = 0, Space space = Space::All);
  /// After the last open_file(): of an earlier run's files all others go, and are written anew.
  void remove_others();
  /// All of them, under their final names and on the disk.
  void publish_files();
  /// For a process that joined the run: flushes its files, and writes what the first process has to know of the bytes
  /// that went into them. `more` is what the format adds.
  std::vector<std::byte> export_sums(std::span<const std::byte> more = {});
  /// Takes what another process exported, and returns what its format added. From then on the files are read as the
  /// other processes wrote them. Throws Io where it is damaged.
  std::string import_sums(std::span<const std::byte> sums);

  /// A small file, flushed.
  void write_text(const std::string& name, std::string_view text);
  /// Megatron's tracker file, beside the directory `inner`.
  void write_tracker(std::string_view text);
  /// Copies the source's other files, except those that were written here.
  void copy_extra_files();
  /// glu_ckpt.json with the checksums of all files so far; the last file of a directory.
  void write_record_file(const Record& record);
  void sync_directories() const;

  std::filesystem::path staged_path() const;
  void commit();
  bool has_journal() const { return staged_.has_journal(); }
  /// Throws Io where there is none.
  Journal& journal();
  bool resumed() const { return staged_.resumed(); }
  void keep() { staged_.keep(); }
  void discard() { staged_.discard(); }

  void count(i64 bytes) { bytes_written_ += bytes; }
  i64 bytes_written() const { return bytes_written_; }
  /// Names of all files so far, relative to the checkpoint.
  const std::set<std::string>& names() const { return names_; }
  std::filesystem::path root() const;

 private:
  std::filesystem::path claim(const std::string& name);
  void make_subdirectories(const std::filesystem::path& relative);
  void copy_extra_file(const ExtraFile& extra);
  void see_others();
  void remove_others_in(const std::filesystem::path& directory, const std::set<std::filesystem::path>& keep);

  SinkOptions options_;
  std::string inner_;
  bool single_file_;
  StagedDir staged_;
  /// For files between whose parts others are cloned.
  PageSpool spool_;
  HashMemory hash_memory_;
  /// A deque: files stay where they are.
  std::deque<OutputFile> files_;
  std::vector<std::string> file_names_;
  std::set<std::string> names_;
  /// The lines of glu_ckpt.json, by name.
  std::map<std::string, FileRecord> records_;
  /// Relative to the staging directory.
  std::set<std::filesystem::path> subdirectories_;
  std::atomic<i64> bytes_written_{0};
  bool sees_others_ = false;
};

/// Threads that flush or hash files: enough to keep a fast disk busy.
inline constexpr int kFileThreads = 8;

}  // namespace glu_ckpt
