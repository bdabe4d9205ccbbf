#pragma once
/// Files of a source that are removed while it is converted, and what stays of them for a later run to open.

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.hpp"
#include "io/system_calls.hpp"

namespace glu_ckpt {

/// Stands between this program and the disk. It notes which bytes of a source are read while that is opened: headers
/// and directories, but no tensors. A file that was removed later is still found, with its size and dates, and gives
/// those bytes; a read of any other is an error (ENODATA), never zeros. A file in the staging directory
/// (StagedDir::kSourceName) keeps it all, so that a later run plans as the first one did.
class ConsumedFiles final : public SystemCalls {
 public:
  /// `source` is the path by which the checkpoint is going to be opened.
  explicit ConsumedFiles(const std::filesystem::path& source);
  ~ConsumedFiles() override;

  /// Takes over what an earlier run wrote with save(), also of a source that lay elsewhere. Throws Io where it is
  /// damaged.
  void load(const std::filesystem::path& path);
  /// Ends the noting, and keeps what was read of those of the files that are there.
  void keep(std::span<const std::filesystem::path> files);
  /// Writes all that is kept, durably. `fingerprint` is the run's; `memo` is for whoever loads it.
  void save(const std::filesystem::path& path, std::string_view fingerprint, std::string_view memo);
  /// The bytes that save() writes, but for a line.
  i64 kept_bytes() const;
  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& memo() const { return memo_; }
  /// Returns true where an earlier run's file was taken over.
  bool was_loaded() const { return loaded_; }

  /// Closes every descriptor of the file, which goes on as if it were there.
  void release(const std::filesystem::path& file);
  /// Returns true where the file is not there any more, but kept.
  bool is_removed(const std::filesystem::path& file) const;
  bool has_removed() const;

  /// A file as the run found it that kept it.
  struct Found {
    std::string path;
    FileIdentity identity;
  };
  /// What the fingerprint of the earlier run says of the file, where that is still the one: the same file or a copy of
  /// it, wherever the source lies now. Its size, its date and all that was read of it while it was opened tell that.
  std::optional<Found> found_first(const std::filesystem::path& file) const;

  int open(const char* path, int flags, mode_t mode) override;
  int close(int descriptor) override;
  i64 descriptor_limit() override;
  ssize_t pread(int descriptor, void* out, std::size_t bytes, i64 offset) override;
  ssize_t preadv(int descriptor, const iovec* pieces, int count, i64 offset) override;
  ssize_t pwrite(int descriptor, const void* from, std::size_t bytes, i64 offset) override;
  ssize_t copy_file_range(int from, i64* from_offset, int to, i64* to_offset, std::size_t bytes) override;
  int clone_range(int from, i64 from_offset, i64 bytes, int to, i64 to_offset) override;
  int fsync(int descriptor) override;
  int fdatasync(int descriptor) override;
  int sync_file_range(int descriptor, i64 offset, i64 bytes, unsigned flags) override;
  int fallocate(int descriptor, int mode, i64 offset, i64 bytes) override;
  int ftruncate(int descriptor, i64 bytes) override;
  int posix_fadvise(int descriptor, i64 offset, i64 bytes, int advice) override;
  i64 cached_bytes(int descriptor, i64 offset, i64 bytes) override;
  int flock(int descriptor, int operation) override;
  int fchmod(int descriptor, mode_t mode) override;
  int fstat(int descriptor, struct stat* info) override;
  int stat(const char* path, struct stat* info) override;
  int lstat(const char* path, struct stat* info) override;
  int statfs(const char* path, struct statfs* info) override;
  ssize_t readlink(const char* path, char* out, std::size_t bytes) override;
  int realpath(const char* path, std::string& out) override;
  int list(const char* path, std::vector<std::string>& names) override;
  int mkdir(const char* path, mode_t mode) override;
  int rmdir(const char* path) override;
  int unlink(const char* path) override;
  int rename(const char* from, const char* to) override;
  int renameat2(const char* from, const char* to, unsigned flags) override;

 private:
  struct Kept;
  struct Opened;
  using KeptPtr = std::shared_ptr<Kept>;
  using OpenedPtr = std::shared_ptr<Opened>;

  static bool is_copy(const Kept& kept, const struct stat& info, const std::filesystem::path& file);
  std::string resolved(const char* path) const;
  KeptPtr removed_at(const char* path) const;
  OpenedPtr opened(int descriptor) const;
  int add(OpenedPtr file, int wanted);
  int watch(const char* path, int real);
  template <typename Call, typename Otherwise>
  auto with(int descriptor, const Call& call, const Otherwise& otherwise);
  template <typename Call>
  auto on_real(int descriptor, const Call& call);

  SystemCalls& below_;
  /// Without symlinks. Files below it are watched.
  std::string source_;
  std::string fingerprint_;
  std::string memo_;
  bool loaded_ = false;
  std::atomic<bool> notes_{true};
  mutable std::shared_mutex mutex_;
  /// By their paths without symlinks.
  std::map<std::string, KeptPtr> kept_;
  /// By descriptors that are none of the kernel's.
  std::map<int, OpenedPtr> opened_;
};

}  // namespace glu_ckpt
