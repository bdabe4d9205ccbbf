#pragma once
/// Files and directories of the local disk: an owned descriptor whose reads and writes are done in full or
/// throw, and the few directory operations that durable output needs.

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// An open regular file. Reads and writes give their offset, so any number of threads may use one File.
class File {
 public:
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// Opens read-only. Anything but a regular file is refused without blocking on it.
  /// Throws NotFound, NotSupported, Io.
  static File open_read(const std::filesystem::path& path);
  /// Makes a new file; one that exists already is an Io error.
  static File create(const std::filesystem::path& path, mode_t mode = 0666);

  bool is_open() const { return descriptor_ >= 0; }
  const std::filesystem::path& path() const { return path_; }
  i64 size() const;
  /// Permission bits.
  mode_t mode() const;
  void set_mode(mode_t mode) const;

  /// Fills `out` from `offset`. Throws FileTruncated where the file ends first, else Io.
  void pread_exact(std::span<std::byte> out, i64 offset) const;
  /// Throws NoSpace, Io.
  void pwrite_exact(std::span<const std::byte> bytes, i64 offset) const;
  /// Makes the file `bytes` long with its blocks allocated where the filesystem can. Throws NoSpace, Io.
  void reserve(i64 bytes) const;
  /// Copies `bytes` bytes inside the kernel (a reflink where the filesystem has them).
  void copy_from(const File& source, i64 source_offset, i64 offset, i64 bytes) const;
  /// Blocks until data and size are on the disk.
  void sync() const;
  /// Advises the kernel to forget the file's clean pages, so that reads come from the device.
  void drop_cache() const;

 private:
  File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}
  void copy_through_memory(const File& source, i64 source_offset, i64 offset, i64 bytes) const;

  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Throws the Error for errno `error`: NotFound, NoSpace or Io. `action` is a verb: "open", "write".
[[noreturn]] void fail_errno(int error, std::string_view action, const std::filesystem::path& path);

/// A whole file as a string. A larger one than `max_bytes` throws `too_large`.
std::string read_small_file(const std::filesystem::path& path, i64 max_bytes, ErrorCode too_large);
/// A new file with this content, flushed to the disk.
void write_small_file(const std::filesystem::path& path, std::string_view text);
/// Replaces `path` by `text` in one step: `<path>.partial`, fsync, rename, fsync of the directory.
void replace_small_file(const std::filesystem::path& path, std::string_view text);

void sync_directory(const std::filesystem::path& path);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
/// The directory a path is in; "." for a bare name.
std::filesystem::path directory_of(const std::filesystem::path& path);

/// Lifts the soft limit of open files to the hard one, for checkpoints of many shards.
void raise_open_file_limit();

}  // namespace glu_ckpt
