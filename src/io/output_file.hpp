#pragma once
/// One large file of an output: its space is reserved first, its bytes come in any order from any number of threads,
/// and its hash is known at the end without reading it again.
///
/// Until publish() it is `<path>.partial`. Beside it lies `<path>.sums`, 64 bytes for each 1024 of the file: what the
/// blocks add to the hash (core/file_hash.hpp), where their bytes were written in one piece. Zeros, or nothing, stand
/// for blocks that are read back at the end. It is never flushed, so it counts for nothing after a crash.

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/file_hash.hpp"
#include "io/file.hpp"
#include "io/page_spool.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt {

/// What is reserved when a file is made: all of it, or nothing, where parts will be cloned; a reserved block that a
/// clone then replaces has to be free all the same.
enum class Space { All, AsWritten };

class OutputFile {
 public:
  /// Create: a new file of `bytes` bytes. Resume: what an earlier run left under either name, or a new one. Join: what
  /// another process of this run made. Throws NoSpace, Io; ResumeMismatch where the earlier file is longer; NotFound
  /// where there is none to join.
  /// `spool`, where there is one, is flushed before this file is flushed or published.
  OutputFile(const std::filesystem::path& path, i64 bytes, StagedMode mode, Space space = Space::All,
             PageSpool* spool = nullptr);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  i64 bytes() const { return bytes_; }
  /// Whether whole pages go past the page cache. False where the filesystem has no such access or refused a write.
  bool is_direct() const { return use_direct_; }
  /// The names that it may have on the disk before publish(), those of files beside it included.
  std::vector<std::filesystem::path> names() const;

  /// Thread safe; ranges do not overlap. Where `from` lies in its page of memory as `offset` lies in its page of the
  /// file, whole pages go to the disk as they are; else they are copied first. Throws NoSpace, Io.
  void write(std::span<const std::byte> from, i64 offset);
  /// Shares blocks of another file; all offsets are multiples of the filesystem's block. Thread safe. False, with
  /// nothing done, where that cannot be. Only with Space::AsWritten. Throws NoSpace, Io.
  bool try_clone_from(const File& source, i64 source_offset, i64 offset, i64 bytes) const {
    return file_.try_clone_from(source, source_offset, offset, bytes);
  }
  /// Bytes that are in the file already. Thread safe.
  void add_written(std::span<const std::byte> from, i64 offset);
  void read(std::span<std::byte> out, i64 offset) const { file_.pread_exact(out, offset); }

  /// Blocks until what was written, and what is known of its hash, is where other processes find it, on other machines
  /// too. Nothing is written by this process after that.
  void flush();
  /// Once all other processes have flushed. A machine's cache of a network filesystem may hold a page as it was before
  /// another machine wrote to it; this forgets what is cached of the file, which reads then take from where it lies.
  void see_others();
  /// Completes the hash, flushes the file and gives it its name. Nothing is written after that.
  void publish();
  /// After publish(). None with Space::AsWritten: what is cloned is not read.
  const std::optional<Hash128>& hash() const { return hash_; }

 private:
  void open(StagedMode mode);
  void forget_cache() const;
  void open_sums(StagedMode mode);
  void write_moved(std::span<const std::byte> from, i64 offset);
  void write_direct(std::span<const std::byte> from, i64 offset);
  void write_buffered(std::span<const std::byte> from, i64 offset);
  void drop_sums();
  Hash128 compute_hash() const;
  void read_sums(std::span<BlockSum> sums, i64 first) const;
  void read_back(std::span<BlockSum> sums, i64 first) const;

  std::filesystem::path path_;
  i64 bytes_;
  Space space_;
  PageSpool* spool_;
  /// Through the page cache, and past it; the latter not open where the filesystem has no such access.
  File file_;
  File direct_;
  File sums_;
  std::atomic<bool> use_direct_{false};
  /// Cleared where the sums could not be written; then all blocks are read back.
  std::atomic<bool> use_sums_{false};
  std::optional<Hash128> hash_;
};

}  // namespace glu_ckpt
