#include "io/file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <system_error>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "core/readable.hpp"
#include "io/system_calls.hpp"

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
  if (system_calls().fstat(descriptor, &info) != 0) fail_errno(errno, "stat", path);
  return info;
}

i64 nanoseconds(const timespec& time) { return i64{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

/// Errors that say "this filesystem or pair of files cannot do it", after which the plain way is taken.
bool is_unsupported(int error) {
  return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL || error == EXDEV || error == EBADF ||
         error == ENOTTY;
}

std::size_t bytes_of(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

/// Pieces of which some bytes are done, from the front; what is left of them fits one call.
class PiecesLeft {
 public:
  explicit PiecesLeft(std::span<const iovec> pieces) : pieces_(pieces) { skip(0); }

  bool empty() const { return pieces_.empty(); }
  std::span<const iovec> next() {
    const std::size_t count = std::min(pieces_.size(), window_.size());
    std::copy_n(pieces_.begin(), count, window_.begin());
    window_[0].iov_base = static_cast<char*>(window_[0].iov_base) + done_;
    window_[0].iov_len -= done_;
    return std::span(window_).first(count);
  }
  void skip(std::size_t bytes) {
    done_ += bytes;
    while (!pieces_.empty() && done_ >= pieces_.front().iov_len) {
      done_ -= pieces_.front().iov_len;
      pieces_ = pieces_.subspan(1);
    }
  }

 private:
  std::span<const iovec> pieces_;
  /// Bytes of the first piece that are done.
  std::size_t done_ = 0;
  std::array<iovec, IOV_MAX> window_;
};

}  // namespace

void fail_errno(int error, std::string_view action, const fs::path& path) {
  const std::string name = path.string();
  const std::string reason = std::generic_category().message(error);
  if (error == ENOENT && action == "create")
    fail(ErrorCode::NotFound, {name, {}},
         "{}: cannot be created: its directory is not there, or takes no new files; choose another place", name);
  if (error == ENOENT || error == ENOTDIR) fail(ErrorCode::NotFound, {name, {}}, "{}: does not exist", name);
  if (error == ENOSPC || error == EDQUOT)
    fail(ErrorCode::NoSpace, {name, {}}, "{}: cannot {}: {}; {}", name, action, reason, kMakeRoom);
  if (error == EMFILE)
    fail(ErrorCode::Io, {name, {}}, "{}: cannot {}: {}; raise the limit with 'ulimit -n'", name, action, reason);
  // ConsumedFiles say so; no disk does.
  if (error == ENODATA)
    fail(ErrorCode::Io, {name, {}},
         "{}: is not there any more, and DST.partial lacks some of what is needed of it. --consume-source removes no "
         "file "
         "before that is written, so it was removed or damaged by something else; bring the file back, as it was",
         name);
  if (error == ENAMETOOLONG)
    fail(ErrorCode::Io, {name, {}}, "{}: cannot {}: {}; choose a shorter name", name, action, reason);
  fail(ErrorCode::Io, {name, {}}, "{}: cannot {}: {}", name, action, reason);
}

File::File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) system_calls().close(descriptor_);
}

File File::open_regular(const fs::path& path, int flags) {
  SystemCalls& calls = system_calls();
  // Looked at before it is opened, since opening alone acts on some devices; and again after, since it
  // may have been replaced in between. O_NONBLOCK: a FIFO without a writer must not hang.
  struct stat info {};
  if (calls.stat(path.c_str(), &info) != 0) fail_errno(errno, "open", path);
  check_regular(info, path);
  File file(uninterrupted([&] { return calls.open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0); }), path);
  if (!file.is_open()) {
    if ((flags & O_DIRECT) != 0 && is_unsupported(errno)) return file;
    fail_errno(errno, "open", path);
  }
  check_regular(stat_of(file.descriptor_, path), path);
  return file;
}

File File::open_read(const fs::path& path) { return open_regular(path, O_RDONLY); }
File File::open_write(const fs::path& path) {
  check_own(path);
  return open_regular(path, O_RDWR | O_NOFOLLOW);
}
File File::open_read_direct(const fs::path& path) { return open_regular(path, O_RDONLY | O_DIRECT); }
File File::open_direct(const fs::path& path) {
  check_own(path);
  return open_regular(path, O_RDWR | O_DIRECT | O_NOFOLLOW);
}

/// A link may lead to anything, a source's file among it.
void File::check_own(const fs::path& path) {
  struct stat info {};
  if (system_calls().lstat(path.c_str(), &info) != 0) fail_errno(errno, "open", path);
  if (!S_ISREG(info.st_mode) || info.st_nlink > 1)
    fail(ErrorCode::OutputExists, {path.string(), {}},
         "{}: is no file of a run's own, but a link, a file with another name, or no file at all, so it is not written "
         "to; remove it, or its directory",
         path.string());
}

File File::try_create(const fs::path& path, mode_t mode) {
  SystemCalls& calls = system_calls();
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  File file(uninterrupted([&] { return calls.open(path.c_str(), flags, mode); }), path);
  if (!file.is_open() && !was_taken(errno, path)) fail_errno(errno, "create", path);
  return file;
}

File File::create(const fs::path& path, mode_t mode) {
  File file = try_create(path, mode);
  if (!file.is_open()) fail_errno(EEXIST, "create", path);
  return file;
}

File File::unnamed(const fs::path& directory, bool direct) {
  const int flags = O_TMPFILE | O_RDWR | O_CLOEXEC | (direct ? O_DIRECT : 0);
  return File(uninterrupted([&] { return system_calls().open(directory.c_str(), flags, 0600); }), directory);
}

i64 File::size() const { return stat_of(descriptor_, path_).st_size; }
i64 File::links() const { return static_cast<i64>(stat_of(descriptor_, path_).st_nlink); }
mode_t File::mode() const { return stat_of(descriptor_, path_).st_mode & 07777; }

FileIdentity File::identity() const {
  // A file system in user space counts files as it meets them: on another host, or once it is mounted anew, a file has
  // another number.
  constexpr long kFuse = 0x65735546;
  const struct stat info = stat_of(descriptor_, path_);
  struct statfs filesystem {};
  const bool is_counted = system_calls().statfs(path_.c_str(), &filesystem) == 0 && filesystem.f_type == kFuse;
  return {info.st_dev, is_counted ? 0 : info.st_ino, info.st_size, nanoseconds(info.st_mtim),
          nanoseconds(info.st_ctim)};
}

bool File::belongs_to_user() const {
  const uid_t user = ::geteuid();
  return user == 0 || stat_of(descriptor_, path_).st_uid == user;
}

bool File::is_among_last(i64 count) const {
  // A descriptor is the lowest number that is free.
  return descriptor_ >= system_calls().descriptor_limit() - count;
}

i64 File::cached_bytes(i64 offset, i64 bytes) const {
  const i64 cached = system_calls().cached_bytes(descriptor_, offset, bytes);
  return cached < 0 ? bytes : cached;
}

bool File::is_at(const fs::path& path) const {
  struct stat there {};
  if (system_calls().stat(path.c_str(), &there) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    fail_errno(errno, "look at", path);
  }
  const struct stat here = stat_of(descriptor_, path_);
  return here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

void File::set_mode(mode_t mode) const {
  if (uninterrupted([&] { return system_calls().fchmod(descriptor_, mode); }) != 0)
    fail_errno(errno, "set the mode of", path_);
}

void File::fail_truncated(i64 end, std::size_t wanted, i64 offset) const {
  fail(ErrorCode::FileTruncated, {path_.string(), {}}, "{}: ends at byte {}; {} bytes from {} were wanted",
       path_.string(), end, wanted, offset);
}

void File::pread_exact(std::span<std::byte> out, i64 offset) const {
  SystemCalls& calls = system_calls();
  std::size_t done = 0;
  while (done < out.size()) {
    const i64 at = offset + static_cast<i64>(done);
    const ssize_t got =
        uninterrupted([&] { return calls.pread(descriptor_, out.data() + done, out.size() - done, at); });
    if (got < 0) fail_errno(errno, "read", path_);
    if (got == 0) fail_truncated(at, out.size(), offset);
    done += static_cast<std::size_t>(got);
  }
}

void File::preadv_exact(std::span<const iovec> pieces, i64 offset) const {
  SystemCalls& calls = system_calls();
  i64 at = offset;
  for (PiecesLeft left(pieces); !left.empty();) {
    const std::span<const iovec> now = left.next();
    const ssize_t got =
        uninterrupted([&] { return calls.preadv(descriptor_, now.data(), static_cast<int>(now.size()), at); });
    if (got < 0) fail_errno(errno, "read", path_);
    if (got == 0) fail_truncated(at, bytes_of(pieces), offset);
    left.skip(static_cast<std::size_t>(got));
    at += got;
  }
}

void File::pwrite_exact(std::span<const std::byte> bytes, i64 offset) const {
  SystemCalls& calls = system_calls();
  std::size_t done = 0;
  while (done < bytes.size()) {
    const i64 at = offset + static_cast<i64>(done);
    const ssize_t put =
        uninterrupted([&] { return calls.pwrite(descriptor_, bytes.data() + done, bytes.size() - done, at); });
    // A write of no bytes without an error would be repeated for ever.
    if (put <= 0) fail_errno(put == 0 ? EIO : errno, "write", path_);
    done += static_cast<std::size_t>(put);
  }
}

void File::reserve(i64 bytes) const {
  if (bytes > 0 && !try_reserve(0, bytes)) set_size(bytes);
}

void File::reserve_part(i64 offset, i64 bytes) const {
  if (bytes > 0) (void)try_reserve(offset, bytes);
}

bool File::try_reserve(i64 offset, i64 bytes) const {
  // posix_fallocate would write to every block where the filesystem cannot reserve, instead of saying so.
  if (uninterrupted([&] { return system_calls().fallocate(descriptor_, 0, offset, bytes); }) == 0) return true;
  if (!is_unsupported(errno)) fail_errno(errno, "reserve " + size_text(bytes), path_);
  return false;
}

void File::set_size(i64 bytes) const {
  if (uninterrupted([&] { return system_calls().ftruncate(descriptor_, bytes); }) != 0)
    fail_errno(errno, fmt::format("set the size to {}", bytes), path_);
}

void File::copy_from(const File& source, i64 source_offset, i64 offset, i64 bytes) const {
  while (bytes > 0) {
    i64 from = source_offset;
    i64 to = offset;
    const auto wanted = static_cast<std::size_t>(std::min<i64>(bytes, i64{1} << 30));
    const ssize_t put = uninterrupted(
        [&] { return system_calls().copy_file_range(source.descriptor_, &from, descriptor_, &to, wanted); });
    if (put < 0 && !is_unsupported(errno)) fail_errno(errno, "write", path_);
    // Zero at a position inside the file is what some kernels say for files they cannot copy this way.
    if (put <= 0) return copy_through_memory(source, source_offset, offset, bytes);
    source_offset += put;
    offset += put;
    bytes -= put;
  }
}

bool File::try_clone_from(const File& source, i64 source_offset, i64 offset, i64 bytes) const {
  if (bytes == 0) return true;
  const int failed = uninterrupted(
      [&] { return system_calls().clone_range(source.descriptor_, source_offset, bytes, descriptor_, offset); });
  if (failed == 0) return true;
  if (is_unsupported(errno)) return false;
  fail_errno(errno, "clone into", path_);
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

// Advice only: a filesystem that ignores it still gives the right bytes.
void File::drop_cache() const { (void)system_calls().posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }
void File::will_need(i64 offset, i64 bytes) const {
  (void)system_calls().posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);
}
void File::start_writeback(i64 offset, i64 bytes) const {
  (void)system_calls().sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void File::sync() const {
  if (uninterrupted([&] { return system_calls().fsync(descriptor_); }) != 0) fail_errno(errno, "flush", path_);
}

LockResult File::try_lock() const {
  if (uninterrupted([&] { return system_calls().flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0)
    return LockResult::Locked;
  if (errno == EWOULDBLOCK) return LockResult::Busy;
  if (errno == ENOLCK || is_unsupported(errno)) return LockResult::Unsupported;
  fail_errno(errno, "lock", path_);
}

i64 for_each_block(const File& file, const std::function<void(std::span<const std::byte>, i64)>& use) {
  const i64 bytes = file.size();
  std::vector<std::byte> block(static_cast<std::size_t>(std::min<i64>(bytes, kBlockBytes)));
  for (i64 done = 0; done < bytes; done += std::ssize(block)) {
    const auto part = std::span(block).first(static_cast<std::size_t>(std::min(bytes - done, std::ssize(block))));
    file.pread_exact(part, done);
    use(part, done);
  }
  return bytes;
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

void drop_page_cache(const fs::path& path) {
  if (!is_directory_at(path)) return File::open_read(path).drop_cache();
  for (const std::string& name : list_directory(path))
    if (is_file(path / name) || is_directory_at(path / name)) drop_page_cache(path / name);
}

}  // namespace glu_ckpt
