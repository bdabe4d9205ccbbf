#pragma once
/// A file system in memory behind SystemCalls: calls of it can be counted, fail, be short or interrupted, and its power
/// can go, after which only what was flushed is sure to be there.

#include <array>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/system_calls.hpp"
#include "support/memory_bytes.hpp"

namespace glu_ckpt {

/// Kinds of calls, for counts and faults. Read and Write are those of bytes at an offset, in one piece or several.
enum class CallKind {
  Open,
  Close,
  Read,
  Write,
  Copy,
  Clone,
  Sync,
  Advise,
  Reserve,
  Resize,
  Lock,
  Mode,
  Stat,
  Statfs,
  List,
  Link,
  MakeDirectory,
  Remove,
  Rename
};

/// What is left after a crash. Data and size of a file are sure as of its last fsync, names in a directory as of the
/// directory's; a real filesystem may have kept more, in any of these ways.
enum class Crash {
  KeepSynced,  // nothing else
  KeepAll,
  KeepData,        // names as synced, and all data of the files that still have one
  KeepNames,       // all names; bytes that were not synced are zeros, sizes are the last
  KeepNamesShort,  // all names; data and sizes as synced
};
inline constexpr std::array kCrashes = {Crash::KeepSynced, Crash::KeepAll, Crash::KeepData, Crash::KeepNames,
                                        Crash::KeepNamesShort};

/// How many of the bytes that a call reads or writes are done.
enum class Transfer { Whole, Half, OneByte };

/// Paths that are not absolute begin at the root. Safe for threads. Descriptors are large numbers, which the kernel
/// does not know.
class MemorySystem final : public SystemCalls {
 public:
  MemorySystem();
  ~MemorySystem() override;

  // ---- faults. Calls count from 1, since the last reset().
  i64 calls() const;
  i64 calls(CallKind kind) const;
  /// Call `number`, of all or of one kind, has no effect and fails with `error`.
  void fail(i64 number, int error);
  void fail(CallKind kind, i64 number, int error);
  /// Call `number` and all after it have no effect and fail with EIO, up to crash() or reset().
  void stop_at(i64 number);
  /// Runs `action` once, just before call `number` of this kind. It may change files through this object.
  void before(CallKind kind, i64 number, std::function<void()> action);
  /// Each call that can be interrupted is, the first of each two times.
  void interrupt(bool on);
  void set_transfer(Transfer transfer);
  /// Forgets faults and counts.
  void reset();

  // ---- what the filesystem can do; all of it unless it is told otherwise, but for clones
  void allow_direct(bool on);
  void allow_clone(bool on);
  void allow_reserve(bool on);
  void allow_lock(bool on);
  void allow_rename_flags(bool on);
  void set_free_bytes(i64 bytes);
  /// Whether the page cache is said to have all bytes, as it is at first, or none.
  void set_cached(bool on) { set_cached_percent(on ? 100 : 0); }
  void set_cached_percent(int percent);

  /// The power goes and comes back: no descriptor is open after it, and everything that is left is durable.
  void crash(Crash what);

  /// Direct I/O that no disk takes is an error as on others; a test fails, too, unless it says that it means to ask.
  void allow_misaligned(bool on) { allow_misaligned_ = on; }
  /// How many more descriptors there are.
  void set_free_descriptors(i64 count);
  /// Bytes that reads past the cache gave.
  i64 bytes_past_cache() const;

  // ---- for a test's eyes; no calls, so neither counted nor failed
  void make_symlink(const std::string& target, const std::filesystem::path& path);
  /// A file with this text, durable with its name; directories above it are made.
  void put(const std::filesystem::path& path, std::string_view text);
  /// None where there is no file.
  std::optional<std::string> get(const std::filesystem::path& path) const;
  /// Paths of everything below a directory, sorted; directories with "/" at their end.
  std::vector<std::string> tree(const std::filesystem::path& path) const;
  int open_descriptors() const;

  int open(const char* path, int flags, mode_t mode) override;
  int close(int descriptor) override;
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
  i64 descriptor_limit() override { return descriptor_limit_; }
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
  struct Node;
  struct OpenFile;
  struct Place;
  using NodePtr = std::shared_ptr<Node>;
  struct Fault {
    std::optional<CallKind> kind;
    i64 number;
    int error;
  };

  /// Runs one call under the lock: counts it, lets it fail where it is to, and turns a negative errno into -1 and
  /// errno.
  template <typename Body>
  auto call(CallKind kind, const Body& body) -> decltype(body());
  int injected_error(CallKind kind);
  void run_action(CallKind kind);

  NodePtr make_node(mode_t mode);
  int find(const std::string& path, bool follow, Place& place, int links = 0) const;
  NodePtr directory_for(const std::filesystem::path& path);
  OpenFile* opened(int descriptor) const;
  int add_descriptor(const NodePtr& node, int flags);
  int stat_node(const Node& node, struct stat* info) const;
  int stat_path(const char* path, bool follow, struct stat* info);
  ssize_t move_bytes(int descriptor, const iovec* pieces, int count, i64 offset, bool write);
  i64 allowed_bytes(i64 wanted) const;
  bool is_aligned(const OpenFile& file, const iovec* pieces, int count, i64 offset) const;
  int write_to(Node& node, const void* from, i64 bytes, i64 offset);
  void touch(Node& node);
  int rename_to(const char* from, const char* to, unsigned flags);
  int sync_node(int descriptor);
  NodePtr survivor(const NodePtr& node, Crash what, std::map<const Node*, NodePtr>& made);

  mutable std::mutex mutex_;
  NodePtr root_;
  std::map<int, std::unique_ptr<OpenFile>> open_;
  int next_descriptor_ = 1 << 24;
  u64 next_ino_ = 1;
  i64 clock_ns_ = 1'000'000'000;

  i64 calls_ = 0;
  std::map<CallKind, i64> calls_of_;
  std::vector<Fault> faults_;
  std::optional<i64> stop_at_;
  struct Action {
    CallKind kind;
    i64 number;
    std::function<void()> run;
  };
  std::optional<Action> action_;
  bool interrupt_ = false;
  bool interrupt_next_ = false;
  Transfer transfer_ = Transfer::Whole;

  bool can_direct_ = true;
  bool can_clone_ = false;
  int cached_percent_ = 100;
  bool allow_misaligned_ = false;
  i64 bytes_past_cache_ = 0;
  i64 descriptor_limit_ = std::numeric_limits<i64>::max();
  bool can_reserve_ = true;
  bool can_lock_ = true;
  bool can_rename_flags_ = true;
  i64 free_bytes_ = i64{1} << 40;
};

}  // namespace glu_ckpt
