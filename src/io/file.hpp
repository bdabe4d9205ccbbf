#pragma once
/// An owned descriptor whose reads and writes are done in full or throw, and small files in one call.

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/tensor.hpp"
#include "io/directory.hpp"

namespace glu_ckpt {

/// The identity of a file. Where it changed, the file was replaced or written to.
struct FileIdentity {
  u64 dev = 0;
  /// 0 where the file system makes numbers up.
  u64 ino = 0;
  i64 size = 0;
  i64 mtime_ns = 0;
  i64 ctime_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

/// The advice of messages about a full disk.
inline constexpr std::string_view kMakeRoom = "free some space or choose another disk";

/// Unsupported: the filesystem has no locks.
enum class LockResult { Locked, Busy, Unsupported };

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
  /// Makes a new file; it is not open where the name is taken.
  static File try_create(const std::filesystem::path& path, mode_t mode = 0666);

  /// Reads past the page cache (O_DIRECT): offset, length and address of whatever is read are multiples of the
  /// filesystem's block. Not open where the filesystem has no such access. Throws as open_read().
  static File open_read_direct(const std::filesystem::path& path);

  /// An existing file for reading and writing. Throws as open_read(); OutputExists for a file with several names, and
  /// for what is no file, a link among it.
  static File open_write(const std::filesystem::path& path);
  /// Opens an existing file for access past the page cache (O_DIRECT): offset, length and address of whatever is read
  /// or written are multiples of the filesystem's block. Not open where the filesystem has no such access.
  static File open_direct(const std::filesystem::path& path);

  /// A file without a name in `directory`, gone once it is closed; `direct` as open_direct(). Not open, and errno says
  /// why, where the filesystem has no such files, or the directory cannot be written to.
  static File unnamed(const std::filesystem::path& directory, bool direct);

  bool is_open() const { return descriptor_ >= 0; }
  const std::filesystem::path& path() const { return path_; }
  /// Returns the descriptor for those who map the file into memory.
  int descriptor() const { return descriptor_; }
  i64 size() const;
  /// How many names it has.
  i64 links() const;
  /// Permission bits.
  mode_t mode() const;
  void set_mode(mode_t mode) const;
  FileIdentity identity() const;
  /// Returns true where the file is this user's, or this user may do anything.
  bool belongs_to_user() const;
  /// Returns true where this process may open fewer than `count` files more.
  bool is_among_last(i64 count) const;
  /// Bytes of these that the page cache has; all, where the system does not say so or the file is not this user's.
  i64 cached_bytes(i64 offset, i64 bytes) const;
  /// Returns true where `path` (of this file, or another) still names this file. Throws Io where that cannot be seen.
  bool is_at(const std::filesystem::path& path) const;

  /// Fills `out` from `offset`. Throws FileTruncated where the file ends first, else Io.
  void pread_exact(std::span<std::byte> out, i64 offset) const;
  /// Fills the pieces one after another, as many as there are.
  void preadv_exact(std::span<const iovec> pieces, i64 offset) const;
  /// Throws NoSpace, Io.
  void pwrite_exact(std::span<const std::byte> bytes, i64 offset) const;
  /// Makes the file `bytes` long with its blocks allocated where the filesystem can. Throws NoSpace, Io.
  void reserve(i64 bytes) const;
  /// Allocates the blocks of a part of the file where the filesystem can. Throws NoSpace, Io.
  void reserve_part(i64 offset, i64 bytes) const;
  /// Cuts the file, or lengthens it by zeros.
  void set_size(i64 bytes) const;
  /// Copies `bytes` bytes inside the kernel (a reflink where the filesystem has them).
  void copy_from(const File& source, i64 source_offset, i64 offset, i64 bytes) const;
  /// Lets the file share blocks with the source (FICLONERANGE). False, with nothing done, where the filesystem or these
  /// offsets, which must be multiples of its block, do not allow it. Throws NoSpace, Io.
  bool try_clone_from(const File& source, i64 source_offset, i64 offset, i64 bytes) const;
  /// Blocks until data and size are on the disk.
  void sync() const;
  /// Advises the kernel to forget the file's clean pages, so that reads come from the device.
  void drop_cache() const;
  /// Advises the kernel to write these bytes out now, without waiting for it.
  void start_writeback(i64 offset, i64 bytes) const;
  /// Advises the kernel to read these bytes ahead.
  void will_need(i64 offset, i64 bytes) const;
  /// Locks the file against every other open of it, in this process and others, until it is closed. Does not wait.
  LockResult try_lock() const;

 private:
  File(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}
  static File open_regular(const std::filesystem::path& path, int flags);
  static void check_own(const std::filesystem::path& path);
  bool try_reserve(i64 offset, i64 bytes) const;
  [[noreturn]] void fail_truncated(i64 end, std::size_t wanted, i64 offset) const;
  void copy_through_memory(const File& source, i64 source_offset, i64 offset, i64 bytes) const;

  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Throws the Error for errno `error`: NotFound, NoSpace or Io. `action` is a verb: "open", "write".
[[noreturn]] void fail_errno(int error, std::string_view action, const std::filesystem::path& path);

/// Reads a file once, from its beginning to its end, and gives each block of 1 MiB and its offset to `use`; the last
/// block may be shorter. Returns the file's bytes.
/// Throws Io, FileTruncated.
i64 for_each_block(const File& file, const std::function<void(std::span<const std::byte>, i64)>& use);

/// A whole file as a string. A larger one than `max_bytes` throws `too_large`.
std::string read_small_file(const std::filesystem::path& path, i64 max_bytes, ErrorCode too_large);
/// A new file with this content, flushed to the disk.
void write_small_file(const std::filesystem::path& path, std::string_view text);

/// Makes later reads of a flushed file, or of all files below a directory, come from the device rather than from the
/// page cache.
void drop_page_cache(const std::filesystem::path& path);

/// Lifts the soft limit of open files to the hard one, for checkpoints of many shards.
void raise_open_file_limit();

}  // namespace glu_ckpt
