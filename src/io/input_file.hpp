#pragma once
/// One large file of a source.

#include <atomic>
#include <mutex>
#include <span>

#include "io/file.hpp"

namespace glu_ckpt {

/// Bytes that the page cache has come from there. The rest is read past it (O_DIRECT) where it can go to its place at
/// once, so that a checkpoint costs no copy of itself, and does not push out of memory what others need there.
class InputFile {
 public:
  explicit InputFile(File file) : file_(std::move(file)) {}
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const File& file() const { return file_; }
  /// Returns true where pages that are not in memory are read past the cache, if whole pages of the file are whole
  /// pages of `pieces`: with a filesystem that has such access and tells this user what is in the cache, and no failure
  /// so far.
  bool reads_past_cache() const;
  /// Makes later reads leave in the cache what they read. Thread safe.
  void keep_in_cache() const;
  /// Fills the pieces one after another, as many as there are. Thread safe. Throws FileTruncated, Io.
  void read(std::span<const iovec> pieces, i64 offset) const;

 private:
  bool is_cached(i64 offset, i64 bytes) const;
  bool try_read_past_cache(std::span<const iovec> pieces, i64 offset, i64 bytes) const;

  File file_;
  mutable std::once_flag opened_;
  mutable File direct_;
  mutable std::atomic<bool> use_direct_{false};
};

}  // namespace glu_ckpt
