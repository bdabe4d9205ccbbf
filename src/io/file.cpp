#include "io/file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "of an unknown kind";
}

void check_regular(const struct stat& info, const fs::path& path) {
  if (S_ISREG(info.st_mode)) return;
  fail(ErrorCode::NotSupported, {path.string(), {}}, "{}: is {}; only regular files can be read", path.string(),
       kind_of(info.st_mode));
}

struct stat stat_of(int descriptor, const fs::path& path) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) fail_errno(errno, "stat", path);
  return info;
}

/// Errors that say "this filesystem or pair of files cannot do it", after which the plain way is taken.
bool is_unsupported(int error) {
  return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL || error == EXDEV || error == EBADF;
}

}  // namespace

void fail_errno(int error, std::string_view action, const fs::path& path) {
  const std::string name = path.string();
  const std::string reason = std::generic_category().message(error);
  if (error == ENOENT || error == ENOTDIR) fail(ErrorCode::NotFound, {name, {}}, "{}: does not exist", name);
  if (error == ENOSPC || error == EDQUOT)
    fail(ErrorCode::NoSpace, {name, {}}, "{}: cannot {}: {}; free some space or choose another disk", name, action,
         reason);
  if (error == EMFILE)
    fail(ErrorCode::Io, {name, {}}, "{}: cannot {}: {}; raise the limit with 'ulimit -n'", name, action, reason);
  fail(ErrorCode::Io, {name, {}}, "{}: cannot {}: {}", name, action, reason);
}

File::File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File File::open_read(const fs::path& path) {
  // Looked at before it is opened, since opening alone acts on some devices; and again after, since it
  // may have been replaced in between. O_NONBLOCK: a FIFO without a writer must not hang.
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) fail_errno(errno, "open", path);
  check_regular(info, path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_errno(errno, "open", path);
  File file(descriptor, path);
  check_regular(stat_of(descriptor, path), path);
  return file;
}

File File::create(const fs::path& path, mode_t mode) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (descriptor < 0) fail_errno(errno, "create", path);
  return File(descriptor, path);
}

i64 File::size() const { return stat_of(descriptor_, path_).st_size; }
mode_t File::mode() const { return stat_of(descriptor_, path_).st_mode & 07777; }

void File::set_mode(mode_t mode) const {
  if (::fchmod(descriptor_, mode) != 0) fail_errno(errno, "set the mode of", path_);
}

void File::pread_exact(std::span<std::byte> out, i64 offset) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const i64 at = offset + static_cast<i64>(done);
    const ssize_t got = ::pread(descriptor_, out.data() + done, out.size() - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(errno, "read", path_);
    if (got == 0)
      fail(ErrorCode::FileTruncated, {path_.string(), {}}, "{}: ends at byte {}; {} bytes from {} were wanted",
           path_.string(), at, out.size(), offset);
    done += static_cast<std::size_t>(got);
  }
}

void File::pwrite_exact(std::span<const std::byte> bytes, i64 offset) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put =
        ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done, offset + static_cast<i64>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno(errno, "write", path_);
    done += static_cast<std::size_t>(put);
  }
}

void File::reserve(i64 bytes) const {
  if (bytes == 0) return;
  // Not posix_fallocate: where the filesystem cannot, that writes to every block instead of saying so.
  while (::fallocate(descriptor_, 0, 0, bytes) != 0) {
    if (errno == EINTR) continue;
    if (!is_unsupported(errno)) fail_errno(errno, fmt::format("reserve {} bytes", bytes), path_);
    if (::ftruncate(descriptor_, bytes) != 0) fail_errno(errno, fmt::format("set the size to {}", bytes), path_);
    return;
  }
}

void File::copy_from(const File& source, i64 source_offset, i64 offset, i64 bytes) const {
  while (bytes > 0) {
    off_t from = source_offset;
    off_t to = offset;
    const auto wanted = static_cast<std::size_t>(std::min<i64>(bytes, i64{1} << 30));
    const ssize_t put = ::copy_file_range(source.descriptor_, &from, descriptor_, &to, wanted, 0);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && !is_unsupported(errno)) fail_errno(errno, "write", path_);
    // Zero at a position inside the file is what some kernels say for files they cannot copy this way.
    if (put <= 0) return copy_through_memory(source, source_offset, offset, bytes);
    source_offset += put;
    offset += put;
    bytes -= put;
  }
}

void File::copy_through_memory(const File& source, i64 source_offset, i64 offset, i64 bytes) const {
  std::vector<std::byte> block(static_cast<std::size_t>(std::min<i64>(bytes, kBlockBytes)));
  for (i64 done = 0; done < bytes;) {
    const auto now = std::min<i64>(bytes - done, static_cast<i64>(block.size()));
    const auto part = std::span(block).first(static_cast<std::size_t>(now));
    source.pread_exact(part, source_offset + done);
    pwrite_exact(part, offset + done);
    done += now;
  }
}

void File::drop_cache() const {
  // Advice only: a filesystem that ignores it still gives the right bytes.
  (void)::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

void File::sync() const {
  while (::fsync(descriptor_) != 0)
    if (errno != EINTR) fail_errno(errno, "flush", path_);
}

std::string read_small_file(const fs::path& path, i64 max_bytes, ErrorCode too_large) {
  const File file = File::open_read(path);
  const i64 bytes = file.size();
  if (bytes > max_bytes)
    fail_at(too_large, {path.string(), max_bytes}, "goes on to {} bytes; at most {} are read", bytes, max_bytes);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.pread_exact(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

void write_small_file(const fs::path& path, std::string_view text) {
  const File file = File::create(path);
  file.pwrite_exact(std::as_bytes(std::span(text)), 0);
  file.sync();
}

void replace_small_file(const fs::path& path, std::string_view text) {
  fs::path partial = path;
  partial += ".partial";
  try {
    write_small_file(partial, text);
    rename_path(partial, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    throw;
  }
  sync_directory(directory_of(path));
}

void sync_directory(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_errno(errno, "open", path);
  const int failed = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some network filesystems cannot flush a directory and say EINVAL.
  if (failed != 0 && error != EINVAL) fail_errno(error, "flush", path);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno(errno, fmt::format("rename to {}", to.string()), from);
}

fs::path directory_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void raise_open_file_limit() {
  // Capped: with an unlimited hard limit some kernels and tools size tables by the soft one.
  constexpr rlim_t kEnough = 65536;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace glu_ckpt
