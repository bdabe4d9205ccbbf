#pragma once
/// Every call that reaches a disk. src/io and src/format make them through system_calls() only, so that a test can put
/// a file system in memory in their place, count them, and let any of them fail.

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The kernel's own calls. Each means what POSIX or Linux says of the function of its name: -1 and errno when it fails.
class SystemCalls {
 public:
  SystemCalls() = default;
  SystemCalls(const SystemCalls&) = delete;
  SystemCalls& operator=(const SystemCalls&) = delete;
  virtual ~SystemCalls() = default;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual int close(int descriptor);
  /// RLIMIT_NOFILE: all descriptors are below it.
  virtual i64 descriptor_limit();

  virtual ssize_t pread(int descriptor, void* out, std::size_t bytes, i64 offset);
  virtual ssize_t preadv(int descriptor, const iovec* pieces, int count, i64 offset);
  virtual ssize_t pwrite(int descriptor, const void* from, std::size_t bytes, i64 offset);
  virtual ssize_t copy_file_range(int from, i64* from_offset, int to, i64* to_offset, std::size_t bytes);
  /// ioctl FICLONERANGE; `bytes` of 0 means up to the end of the source.
  virtual int clone_range(int from, i64 from_offset, i64 bytes, int to, i64 to_offset);

  virtual int fsync(int descriptor);
  virtual int fdatasync(int descriptor);
  virtual int sync_file_range(int descriptor, i64 offset, i64 bytes, unsigned flags);
  virtual int fallocate(int descriptor, int mode, i64 offset, i64 bytes);
  virtual int ftruncate(int descriptor, i64 bytes);
  virtual int posix_fadvise(int descriptor, i64 offset, i64 bytes, int advice);
  /// cachestat(), or mincore(), of a part of a file: how many bytes the pages hold that are in the page cache. Linux
  /// says all of them of a file that the caller neither owns nor may write to.
  virtual i64 cached_bytes(int descriptor, i64 offset, i64 bytes);
  virtual int flock(int descriptor, int operation);
  virtual int fchmod(int descriptor, mode_t mode);

  virtual int fstat(int descriptor, struct stat* info);
  virtual int stat(const char* path, struct stat* info);
  virtual int lstat(const char* path, struct stat* info);
  virtual int statfs(const char* path, struct statfs* info);
  virtual ssize_t readlink(const char* path, char* out, std::size_t bytes);
  virtual int realpath(const char* path, std::string& out);
  /// Names in a directory, in any order, without "." and "..".
  virtual int list(const char* path, std::vector<std::string>& names);

  virtual int mkdir(const char* path, mode_t mode);
  virtual int rmdir(const char* path);
  virtual int unlink(const char* path);
  virtual int rename(const char* from, const char* to);
  /// `flags` as in RENAME_NOREPLACE.
  virtual int renameat2(const char* from, const char* to, unsigned flags);
};

/// Returns the calls in use: the kernel's, unless there is a SystemCallsScope.
SystemCalls& system_calls();

/// Puts other calls in use for the whole process, until its end. One at a time; no File may outlive it.
class SystemCallsScope {
 public:
  explicit SystemCallsScope(SystemCalls& calls);
  SystemCallsScope(const SystemCallsScope&) = delete;
  SystemCallsScope& operator=(const SystemCallsScope&) = delete;
  ~SystemCallsScope();

 private:
  SystemCalls* before_;
};

/// Repeats `call` until no signal cuts it short, and returns its result.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace glu_ckpt
