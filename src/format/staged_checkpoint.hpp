#pragma once
/// What every Sink does the same way: files in a staging directory, the source's other files beside them,
/// glu_ckpt.json over all of them, one rename.

#include <atomic>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>

#include "glu_ckpt/checkpoint.hpp"
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
  /// Where a file of this name (relative to the checkpoint, subdirectories are made) is to be created.
  std::filesystem::path claim(const std::string& name);
  /// A small file, flushed.
  void write_text(const std::string& name, std::string_view text);
  /// Megatron's tracker file, beside the directory `inner`.
  void write_tracker(std::string_view text);
  /// Copies the source's other files, except those that were written here.
  void copy_extra_files();
  /// glu_ckpt.json with the hashes of all files so far; the last file of a directory.
  void write_record_file(const Record& record);
  void sync_directories() const;

  std::filesystem::path staged_path() const;
  void commit();

  void count(i64 bytes) { bytes_written_ += bytes; }
  i64 bytes_written() const { return bytes_written_; }
  /// Names of all files so far, relative to the checkpoint.
  const std::set<std::string>& names() const { return names_; }
  std::filesystem::path root() const;

 private:
  void make_subdirectories(const std::filesystem::path& relative);
  void copy_extra_file(const ExtraFile& extra);

  SinkOptions options_;
  std::string inner_;
  bool single_file_;
  StagedDir staged_;
  std::set<std::string> names_;
  /// Relative to the staging directory.
  std::set<std::filesystem::path> subdirectories_;
  std::atomic<i64> bytes_written_{0};
};

/// Threads that flush or hash files: enough to keep a fast disk busy.
inline constexpr int kFileThreads = 8;

}  // namespace glu_ckpt
