#pragma once
/// One large file of an output: its space is reserved first, its bytes come in any order from any number of threads,
/// and its checksums (core/data_hash.hpp) are made while they pass.
///
/// Until publish() it is called `<path>.partial`.

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/data_hash.hpp"
#include "io/file.hpp"
#include "io/page_spool.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt {

/// A file's space is reserved as a whole when the file is made, or part by part as it is written, or not at all. The
/// second is for files into which parts are cloned: a reserved block that a clone then replaces has to be free all the
/// same. The third is for filesystems in memory, where reserving takes as long as writing.
enum class Space { All, AsWritten, Never };

/// Everything about an output file but its name and how it is opened.
struct OutputFileOptions {
  i64 bytes = 0;
  /// Bytes before the data; write_header() writes them.
  i64 header_bytes = 0;
  Space space = Space::All;
  /// It is flushed before the file is flushed or published. Only for Space::AsWritten; may be null.
  PageSpool* spool = nullptr;
  /// The data are hashed with its help. Null where they are not hashed.
  HashMemory* hash_memory = nullptr;
};

class OutputFile {
 public:
  /// Create makes a new file; Resume takes what an earlier run left under either name, or makes a new file; Join opens
  /// what another process of this run made. Throws NoSpace, Io; ResumeMismatch where the earlier file is longer;
  /// NotFound where there is no file to join.
  OutputFile(const std::filesystem::path& path, StagedMode mode, const OutputFileOptions& options);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  i64 bytes() const { return options_.bytes; }
  i64 header_bytes() const { return options_.header_bytes; }
  /// The names that it may have on the disk before publish().
  std::vector<std::filesystem::path> names() const;

  /// Writes the `header_bytes` first bytes of the file.
  void write_header(std::span<const std::byte> header);
  /// Writes a range behind the header. Thread safe; ranges do not overlap. Where `from` lies in its page of memory as
  /// `offset` lies in its page of the file, whole pages go to the disk as they are; else they are copied first. Throws
  /// NoSpace, Io.
  void write(std::span<const std::byte> from, i64 offset);
  /// Shares blocks of another file; all offsets are multiples of the filesystem's block. Thread safe. False, with
  /// nothing done, where that cannot be. Only with Space::AsWritten. Throws NoSpace, Io.
  bool try_clone_from(const File& source, i64 source_offset, i64 offset, i64 bytes) const {
    return file_.try_clone_from(source, source_offset, offset, bytes);
  }
  /// Counts bytes behind the header that are in the file already. Thread safe.
  void add_written(std::span<const std::byte> from, i64 offset);
  void read(std::span<std::byte> out, i64 offset) const { file_.pread_exact(out, offset); }

  /// Blocks until what was written is where other processes find it, on other machines too. Nothing is written by this
  /// process after that.
  void flush();
  /// Writes what another process has to know of the data that this one wrote or counted.
  void export_hashes(ByteWriter& out) const;
  /// Takes what another process exported. Throws Io where it is damaged.
  void import_hashes(ByteReader& in);
  /// It is called once all other processes have flushed. A machine's cache of a network filesystem may hold a page as
  /// it was before another machine wrote to it; this forgets what is cached of the file, which reads then take from
  /// where it lies.
  void see_others();
  /// Completes the checksums, flushes the file and gives it its name. Nothing is written after that.
  void publish();
  /// XXH3-128 of the header, after write_header().
  const Hash128& header_hash() const { return header_hash_; }
  /// The checksum of the data, after publish(). There is none where the data are not hashed.
  const std::optional<Hash128>& data_hash() const { return data_hash_; }

 private:
  void open(StagedMode mode);
  void open_shared(const std::filesystem::path& partial);
  void forget_cache() const;
  void put(std::span<const std::byte> from, i64 offset);
  void write_moved(std::span<const std::byte> from, i64 offset);
  void write_direct(std::span<const std::byte> from, i64 offset);
  void write_buffered(std::span<const std::byte> from, i64 offset);

  std::filesystem::path path_;
  OutputFileOptions options_;
  /// One writes through the page cache, the other past it; the latter is not open where the filesystem has no such
  /// access.
  File file_;
  File direct_;
  std::atomic<bool> use_direct_{false};
  /// Whose turn it is to write, where all writes are copies.
  std::mutex turn_;
  /// It is null where the data are not hashed.
  std::unique_ptr<DataHasher> hasher_;
  Hash128 header_hash_;
  std::optional<Hash128> data_hash_;
};

}  // namespace glu_ckpt
