#include "io/system_calls.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <memory>

namespace glu_ckpt {
namespace {

/// cachestat() of Linux 6.5, which older headers do not have: it needs no mapping of the file, as mincore() does.
constexpr long kCachestat = 451;
struct CacheRange {
  u64 offset;
  u64 bytes;
};
struct CacheState {
  u64 cached, dirty, writeback, evicted, recently_evicted;
};

SystemCalls& kernel_calls() {
  static SystemCalls calls;
  return calls;
}

std::atomic<SystemCalls*>& calls_in_use() {
  static std::atomic<SystemCalls*> calls = &kernel_calls();
  return calls;
}

}  // namespace

SystemCalls& system_calls() { return *calls_in_use().load(std::memory_order_acquire); }

SystemCallsScope::SystemCallsScope(SystemCalls& calls) : before_(calls_in_use().exchange(&calls)) {}
SystemCallsScope::~SystemCallsScope() { calls_in_use().store(before_); }

int SystemCalls::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
int SystemCalls::close(int descriptor) { return ::close(descriptor); }

ssize_t SystemCalls::pread(int descriptor, void* out, std::size_t bytes, i64 offset) {
  return ::pread(descriptor, out, bytes, offset);
}

ssize_t SystemCalls::preadv(int descriptor, const iovec* pieces, int count, i64 offset) {
  return ::preadv(descriptor, pieces, count, offset);
}

ssize_t SystemCalls::pwrite(int descriptor, const void* from, std::size_t bytes, i64 offset) {
  return ::pwrite(descriptor, from, bytes, offset);
}

ssize_t SystemCalls::copy_file_range(int from, i64* from_offset, int to, i64* to_offset, std::size_t bytes) {
  off_t from_at = *from_offset;
  off_t to_at = *to_offset;
  const ssize_t copied = ::copy_file_range(from, &from_at, to, &to_at, bytes, 0);
  *from_offset = from_at;
  *to_offset = to_at;
  return copied;
}

int SystemCalls::clone_range(int from, i64 from_offset, i64 bytes, int to, i64 to_offset) {
  file_clone_range range{};
  range.src_fd = from;
  range.src_offset = static_cast<u64>(from_offset);
  range.src_length = static_cast<u64>(bytes);
  range.dest_offset = static_cast<u64>(to_offset);
  return ::ioctl(to, FICLONERANGE, &range);
}

int SystemCalls::fsync(int descriptor) { return ::fsync(descriptor); }
int SystemCalls::fdatasync(int descriptor) { return ::fdatasync(descriptor); }

int SystemCalls::sync_file_range(int descriptor, i64 offset, i64 bytes, unsigned flags) {
  return ::sync_file_range(descriptor, offset, bytes, flags);
}

int SystemCalls::fallocate(int descriptor, int mode, i64 offset, i64 bytes) {
  return ::fallocate(descriptor, mode, offset, bytes);
}

int SystemCalls::ftruncate(int descriptor, i64 bytes) { return ::ftruncate(descriptor, bytes); }

int SystemCalls::posix_fadvise(int descriptor, i64 offset, i64 bytes, int advice) {
  const int error = ::posix_fadvise(descriptor, offset, bytes, advice);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

i64 SystemCalls::descriptor_limit() {
  rlimit limit{};
  const bool unlimited = ::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
  return unlimited ? std::numeric_limits<i64>::max() : static_cast<i64>(limit.rlim_cur);
}

i64 SystemCalls::cached_bytes(int descriptor, i64 offset, i64 bytes) {
  const i64 page = ::sysconf(_SC_PAGESIZE);
  CacheRange range{static_cast<u64>(offset), static_cast<u64>(bytes)};
  CacheState state;
  if (::syscall(kCachestat, descriptor, &range, &state, 0) == 0) return page * static_cast<i64>(state.cached);
  const i64 begin = offset / page * page;
  const auto length = static_cast<std::size_t>(offset + bytes - begin);
  std::vector<unsigned char> is_there((length + static_cast<std::size_t>(page) - 1) / static_cast<std::size_t>(page));
  void* const mapped = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor, begin);
  if (mapped == MAP_FAILED) return -1;
  const int failed = ::mincore(mapped, length, is_there.data());
  ::munmap(mapped, length);
  if (failed != 0) return -1;
  return page * std::ranges::count_if(is_there, [](unsigned char flags) { return (flags & 1) != 0; });
}

int SystemCalls::flock(int descriptor, int operation) { return ::flock(descriptor, operation); }
int SystemCalls::fchmod(int descriptor, mode_t mode) { return ::fchmod(descriptor, mode); }

int SystemCalls::fstat(int descriptor, struct stat* info) { return ::fstat(descriptor, info); }
int SystemCalls::stat(const char* path, struct stat* info) { return ::stat(path, info); }
int SystemCalls::lstat(const char* path, struct stat* info) { return ::lstat(path, info); }
int SystemCalls::statfs(const char* path, struct statfs* info) { return ::statfs(path, info); }

ssize_t SystemCalls::readlink(const char* path, char* out, std::size_t bytes) { return ::readlink(path, out, bytes); }

int SystemCalls::realpath(const char* path, std::string& out) {
  const std::unique_ptr<char, decltype(&::free)> found(::realpath(path, nullptr), &::free);
  if (!found) return -1;
  out = found.get();
  return 0;
}

int SystemCalls::list(const char* path, std::vector<std::string>& names) {
  DIR* const directory = ::opendir(path);
  if (directory == nullptr) return -1;
  names.clear();
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(directory);
  errno = error;
  return error == 0 ? 0 : -1;
}

int SystemCalls::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int SystemCalls::rmdir(const char* path) { return ::rmdir(path); }
int SystemCalls::unlink(const char* path) { return ::unlink(path); }
int SystemCalls::rename(const char* from, const char* to) { return ::rename(from, to); }

int SystemCalls::renameat2(const char* from, const char* to, unsigned flags) {
  return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
}

}  // namespace glu_ckpt
