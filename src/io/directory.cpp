#include "io/directory.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "core/fail.hpp"
#include "io/file.hpp"
#include "io/system_calls.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

bool is_about_the_name(int error) {
  return error == EACCES || error == EPERM || error == ELOOP || error == ENAMETOOLONG;
}

/// A disk that fails says nothing about what is there: to take that for Missing would leave out a part of a checkpoint.
PathKind kind_of(int failed, const struct stat& info, const fs::path& path) {
  if (failed != 0 && (errno == ENOENT || errno == ENOTDIR)) return PathKind::Missing;
  if (failed != 0 && is_about_the_name(errno)) return PathKind::Unknown;
  if (failed != 0) fail_errno(errno, "look at", path);
  if (S_ISREG(info.st_mode)) return PathKind::File;
  if (S_ISDIR(info.st_mode)) return PathKind::Directory;
  return S_ISLNK(info.st_mode) ? PathKind::Symlink : PathKind::Other;
}

int errno_of(int failed) { return failed == 0 || errno == ENOENT ? 0 : errno; }

}  // namespace

PathKind path_kind(const fs::path& path) {
  struct stat info {};
  return kind_of(system_calls().stat(path.c_str(), &info), info, path);
}

PathKind link_kind(const fs::path& path) {
  struct stat info {};
  return kind_of(system_calls().lstat(path.c_str(), &info), info, path);
}

bool path_exists(const fs::path& path) {
  const PathKind kind = path_kind(path);
  return kind != PathKind::Missing && kind != PathKind::Unknown;
}

bool name_taken(const fs::path& path) {
  struct stat info {};
  const PathKind kind = kind_of(system_calls().lstat(path.c_str(), &info), info, path);
  if (kind == PathKind::Unknown) fail_errno(errno, "stat", path);
  return kind != PathKind::Missing;
}

bool is_same_directory(const fs::path& a, const fs::path& b) {
  struct stat one {
  }, other{};
  return kind_of(system_calls().stat(a.c_str(), &one), one, a) == PathKind::Directory &&
         kind_of(system_calls().stat(b.c_str(), &other), other, b) == PathKind::Directory &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

bool is_on_same_filesystem(const fs::path& a, const fs::path& b) {
  struct stat one {
  }, other{};
  return kind_of(system_calls().stat(a.c_str(), &one), one, a) != PathKind::Missing &&
         kind_of(system_calls().stat(b.c_str(), &other), other, b) != PathKind::Missing && one.st_dev == other.st_dev;
}

std::vector<std::string> list_directory(const fs::path& path) {
  std::vector<std::string> names;
  if (system_calls().list(path.c_str(), names) != 0) fail_errno(errno, "list", path);
  std::sort(names.begin(), names.end());
  return names;
}

fs::path canonical_path(const fs::path& path) {
  std::string found;
  if (system_calls().realpath(path.c_str(), found) != 0) fail_errno(errno, "find", path);
  return found;
}

bool make_directory(const fs::path& path) {
  if (system_calls().mkdir(path.c_str(), 0777) == 0) return true;
  if (was_taken(errno, path)) return false;
  fail_errno(errno, "create", path);
}

bool was_taken(int error, const fs::path& path) {
  if (error == EPERM && name_taken(path)) return true;
  errno = error;
  return error == EEXIST;
}

int remove_own(const fs::path& path, Own why) {
  SystemCalls& calls = system_calls();
  struct stat info {};
  if (const int error = errno_of(calls.lstat(path.c_str(), &info)); error != 0) return error;
  if (!S_ISDIR(info.st_mode)) return errno_of(calls.unlink(path.c_str()));
  std::vector<std::string> names;
  int first = errno_of(calls.list(path.c_str(), names));
  for (const std::string& name : names) {
    const int error = remove_own(path / name, why);
    if (first == 0) first = error;
  }
  const int error = errno_of(calls.rmdir(path.c_str()));
  return first != 0 ? first : error;
}

int remove_empty_directory(const fs::path& path) { return system_calls().rmdir(path.c_str()) == 0 ? 0 : errno; }

void sync_directory(const fs::path& path) {
  SystemCalls& calls = system_calls();
  const int descriptor = uninterrupted([&] { return calls.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (descriptor < 0) fail_errno(errno, "open", path);
  const int failed = uninterrupted([&] { return calls.fsync(descriptor); });
  const int error = errno;
  calls.close(descriptor);
  // Some network filesystems cannot flush a directory and say EINVAL.
  if (failed != 0 && error != EINVAL) fail_errno(error, "flush", path);
}

void replace_own(const fs::path& from, const fs::path& to, Own /*why*/) {
  if (system_calls().rename(from.c_str(), to.c_str()) != 0)
    fail_errno(errno, fmt::format("rename to {}", to.string()), from);
}

int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  return system_calls().renameat2(from.c_str(), to.c_str(), flags) == 0 ? 0 : errno;
}

fs::path directory_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

}  // namespace glu_ckpt
