#include "io/consumed_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/byte_fields.hpp"
#include "core/fail.hpp"
#include "core/hash.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

/// Descriptors of watched files begin here; the kernel's are below, those of remote files above.
constexpr int kFirstDescriptor = 1 << 27;
constexpr int kOtherDescriptors = 1 << 28;
constexpr i64 kInSecond = 1'000'000'000;
constexpr i64 kMostKept = i64{4} << 30;

i64 in_nanoseconds(const timespec& time) { return i64{time.tv_sec} * kInSecond + time.tv_nsec; }
FileIdentity identity_of(const struct stat& info) {
  return {info.st_dev, info.st_ino, info.st_size, in_nanoseconds(info.st_mtim), in_nanoseconds(info.st_ctim)};
}
timespec time_of(i64 ns) { return {static_cast<time_t>(ns / kInSecond), static_cast<long>(ns % kInSecond)}; }

}  // namespace

/// A file as it was found, and the bytes of it that stay.
struct ConsumedFiles::Kept {
  FileIdentity identity;
  i64 mode = 0;
  /// The ranges that were read while the checkpoint was opened: offsets and bytes.
  std::map<i64, i64> read;
  /// The bytes themselves, by their offsets; no two touch.
  std::map<i64, std::string> parts;
  std::atomic<bool> removed{false};
  /// Of what an earlier run kept: the file as it was found then, where it is still that one, or a copy of that.
  std::optional<Found> found = std::nullopt;

  void fill(struct stat& info) const {
    info = {};
    info.st_mode = S_IFREG | static_cast<mode_t>(mode);
    info.st_size = identity.size;
    info.st_dev = identity.dev;
    info.st_ino = identity.ino;
    info.st_nlink = 1;
    info.st_uid = geteuid();
    info.st_mtim = time_of(identity.mtime_ns);
    info.st_ctim = time_of(identity.ctime_ns);
  }

  ssize_t read_kept(void* out, std::size_t bytes, i64 offset) const {
    if (offset >= identity.size) return 0;
    const std::size_t wanted = std::min(bytes, static_cast<std::size_t>(identity.size - offset));
    auto part = parts.upper_bound(offset);
    if (part != parts.begin()) {
      --part;
      const auto begin = static_cast<std::size_t>(offset - part->first);
      if (begin + wanted <= part->second.size()) {
        std::memcpy(out, part->second.data() + begin, wanted);
        return static_cast<ssize_t>(wanted);
      }
    }
    errno = ENODATA;
    return -1;
  }

  /// The ranges that were read, joined where they touch.
  std::map<i64, i64> joined() const {
    std::map<i64, i64> ranges;
    for (const auto& [offset, bytes] : read) {
      const i64 end = std::min(offset + bytes, identity.size);
      if (end <= offset) continue;
      if (!ranges.empty() && offset <= ranges.rbegin()->first + ranges.rbegin()->second) {
        auto& [first, length] = *ranges.rbegin();
        length = std::max(length, end - first);
      } else {
        ranges[offset] = end - offset;
      }
    }
    return ranges;
  }
};

struct ConsumedFiles::Opened {
  KeptPtr kept;
  /// The descriptor beneath; -1 once the file was released. Reads hold the mutex, so that it is not closed under them.
  int real = -1;
  std::shared_mutex mutex;
};

ConsumedFiles::ConsumedFiles(const fs::path& source) : below_(system_calls()) {
  const fs::path named = source.has_filename() ? source : source.parent_path();
  // A removed file's name cannot be resolved as a whole.
  if (below_.realpath(named.c_str(), source_) != 0) source_ = resolved(named.c_str());
  if (source_.empty()) fail_errno(errno, "find", source);
}
ConsumedFiles::~ConsumedFiles() = default;

/// Returns the path without symlinks above its name, which may be a removed file's. Empty where that cannot be said.
std::string ConsumedFiles::resolved(const char* path) const {
  const fs::path named(path);
  std::string directory;
  if (below_.realpath(directory_of(named).c_str(), directory) != 0) return {};
  return (fs::path(directory) / named.filename()).string();
}

/// Called where a call has just failed. Returns what is kept where it failed for want of a file that was removed.
ConsumedFiles::KeptPtr ConsumedFiles::removed_at(const char* path) const {
  if (errno != ENOENT) return nullptr;
  const std::string name = resolved(path);
  // A disk that fails says nothing about what is there: errno is its error then.
  if (name.empty() && errno != ENOENT && errno != ENOTDIR) return nullptr;
  errno = ENOENT;
  const std::shared_lock lock(mutex_);
  const auto kept = kept_.find(name);
  return kept != kept_.end() && kept->second->removed ? kept->second : nullptr;
}

ConsumedFiles::OpenedPtr ConsumedFiles::opened(int descriptor) const {
  if (descriptor < kFirstDescriptor) return nullptr;
  const std::shared_lock lock(mutex_);
  const auto found = opened_.find(descriptor);
  return found == opened_.end() ? nullptr : found->second;
}

int ConsumedFiles::add(OpenedPtr file, int wanted) {
  const std::unique_lock lock(mutex_);
  while (!opened_.emplace(wanted, file).second) wanted = std::max(wanted + 1, kOtherDescriptors);
  return wanted;
}

/// Begins to keep the file, if it is the source's.
int ConsumedFiles::watch(const char* path, int real) {
  struct stat info {};
  const bool is_known = below_.fstat(real, &info) == 0;
  if (is_known && !S_ISREG(info.st_mode)) return real;
  const std::string name = is_known ? resolved(path) : std::string();
  if (name.empty()) {
    // A file that is not watched could not be kept.
    const int error = errno;
    (void)below_.close(real);
    errno = error;
    return -1;
  }
  if (name != source_ && !name.starts_with(source_ + "/")) return real;
  auto file = std::make_shared<Opened>();
  file->real = real;
  {
    const std::unique_lock lock(mutex_);
    KeptPtr& kept = kept_[name];
    if (!kept) {
      if (!notes_) {
        kept_.erase(name);
        return real;
      }
      kept = std::make_shared<Kept>();
      kept->identity = identity_of(info);
      kept->mode = info.st_mode & 07777;
    }
    file->kept = kept;
  }
  return add(std::move(file), kFirstDescriptor + real);
}

int ConsumedFiles::open(const char* path, int flags, mode_t mode) {
  const int real = below_.open(path, flags, mode);
  const bool only_reads = (flags & O_ACCMODE) == O_RDONLY && (flags & O_DIRECTORY) == 0;
  if (!only_reads) return real;
  if (real >= 0) return watch(path, real);
  KeptPtr kept = removed_at(path);
  if (!kept) return real;
  auto file = std::make_shared<Opened>();
  file->kept = std::move(kept);
  return add(std::move(file), kOtherDescriptors);
}

int ConsumedFiles::close(int descriptor) {
  OpenedPtr file = opened(descriptor);
  if (!file) return below_.close(descriptor);
  {
    const std::unique_lock lock(mutex_);
    opened_.erase(descriptor);
  }
  const std::unique_lock lock(file->mutex);
  const int real = std::exchange(file->real, -1);
  return real < 0 ? 0 : below_.close(real);
}

/// Calls `call` with the descriptor beneath, or `otherwise` with what is kept of a file that was released.
template <typename Call, typename Otherwise>
auto ConsumedFiles::with(int descriptor, const Call& call, const Otherwise& otherwise) {
  const OpenedPtr file = opened(descriptor);
  if (!file) return call(descriptor, static_cast<Kept*>(nullptr));
  const std::shared_lock lock(file->mutex);
  return file->real >= 0 ? call(file->real, file->kept.get()) : otherwise(*file->kept);
}

/// Advice and locks mean nothing for what is not there.
template <typename Call>
auto ConsumedFiles::on_real(int descriptor, const Call& call) {
  return with(
      descriptor, [&](int real, Kept*) { return call(real); }, [&](const Kept&) { return decltype(call(0)){0}; });
}

/// Those who ask how many descriptors are left compare with a watched file's.
i64 ConsumedFiles::descriptor_limit() { return kFirstDescriptor + below_.descriptor_limit(); }

ssize_t ConsumedFiles::pread(int descriptor, void* out, std::size_t bytes, i64 offset) {
  const iovec piece{out, bytes};
  return preadv(descriptor, &piece, 1, offset);
}

ssize_t ConsumedFiles::preadv(int descriptor, const iovec* pieces, int count, i64 offset) {
  return with(
      descriptor,
      [&](int real, Kept* kept) {
        const ssize_t done = count == 1 ? below_.pread(real, pieces->iov_base, pieces->iov_len, offset)
                                        : below_.preadv(real, pieces, count, offset);
        if (kept == nullptr || done <= 0 || !notes_) return done;
        const std::unique_lock lock(mutex_);
        i64& length = kept->read[offset];
        length = std::max(length, i64{done});
        return done;
      },
      [&](const Kept& kept) {
        ssize_t total = 0;
        for (int i = 0; i < count; ++i) {
          const ssize_t done = kept.read_kept(pieces[i].iov_base, pieces[i].iov_len, offset + total);
          if (done < 0) return done;
          total += done;
          if (static_cast<std::size_t>(done) < pieces[i].iov_len) break;
        }
        return total;
      });
}

int ConsumedFiles::fstat(int descriptor, struct stat* info) {
  return with(
      descriptor, [&](int real, Kept*) { return below_.fstat(real, info); },
      [&](const Kept& kept) {
        kept.fill(*info);
        return 0;
      });
}

i64 ConsumedFiles::cached_bytes(int descriptor, i64 offset, i64 bytes) {
  return on_real(descriptor, [&](int real) { return below_.cached_bytes(real, offset, bytes); });
}
int ConsumedFiles::fsync(int descriptor) {
  return on_real(descriptor, [&](int real) { return below_.fsync(real); });
}
int ConsumedFiles::fdatasync(int descriptor) {
  return on_real(descriptor, [&](int real) { return below_.fdatasync(real); });
}
int ConsumedFiles::posix_fadvise(int descriptor, i64 offset, i64 bytes, int advice) {
  return on_real(descriptor, [&](int real) { return below_.posix_fadvise(real, offset, bytes, advice); });
}
int ConsumedFiles::flock(int descriptor, int operation) {
  return on_real(descriptor, [&](int real) { return below_.flock(real, operation); });
}
ssize_t ConsumedFiles::copy_file_range(int from, i64* from_offset, int to, i64* to_offset, std::size_t bytes) {
  return on_real(from, [&](int real) { return below_.copy_file_range(real, from_offset, to, to_offset, bytes); });
}
int ConsumedFiles::clone_range(int from, i64 from_offset, i64 bytes, int to, i64 to_offset) {
  return on_real(from, [&](int real) { return below_.clone_range(real, from_offset, bytes, to, to_offset); });
}

// Watched files are open for reading only, so these are about others.
ssize_t ConsumedFiles::pwrite(int descriptor, const void* from, std::size_t bytes, i64 offset) {
  return below_.pwrite(descriptor, from, bytes, offset);
}
int ConsumedFiles::sync_file_range(int descriptor, i64 offset, i64 bytes, unsigned flags) {
  return below_.sync_file_range(descriptor, offset, bytes, flags);
}
int ConsumedFiles::fallocate(int descriptor, int mode, i64 offset, i64 bytes) {
  return below_.fallocate(descriptor, mode, offset, bytes);
}
int ConsumedFiles::ftruncate(int descriptor, i64 bytes) { return below_.ftruncate(descriptor, bytes); }
int ConsumedFiles::fchmod(int descriptor, mode_t mode) { return below_.fchmod(descriptor, mode); }

int ConsumedFiles::stat(const char* path, struct stat* info) {
  const int failed = below_.stat(path, info);
  const KeptPtr kept = failed == 0 ? nullptr : removed_at(path);
  if (!kept) return failed;
  kept->fill(*info);
  return 0;
}

int ConsumedFiles::lstat(const char* path, struct stat* info) {
  const int failed = below_.lstat(path, info);
  const KeptPtr kept = failed == 0 ? nullptr : removed_at(path);
  if (!kept) return failed;
  kept->fill(*info);
  return 0;
}

int ConsumedFiles::realpath(const char* path, std::string& out) {
  const int failed = below_.realpath(path, out);
  if (failed == 0 || !removed_at(path)) return failed;
  out = resolved(path);
  return 0;
}

int ConsumedFiles::list(const char* path, std::vector<std::string>& names) {
  const int failed = below_.list(path, names);
  std::string directory;
  if (failed != 0 || below_.realpath(path, directory) != 0) return failed;
  const std::shared_lock lock(mutex_);
  for (const auto& [name, kept] : kept_)
    if (kept->removed && fs::path(name).parent_path() == directory &&
        std::ranges::find(names, fs::path(name).filename().string()) == names.end())
      names.push_back(fs::path(name).filename().string());
  return 0;
}

int ConsumedFiles::statfs(const char* path, struct statfs* info) { return below_.statfs(path, info); }
ssize_t ConsumedFiles::readlink(const char* path, char* out, std::size_t bytes) {
  return below_.readlink(path, out, bytes);
}
int ConsumedFiles::mkdir(const char* path, mode_t mode) { return below_.mkdir(path, mode); }
int ConsumedFiles::rmdir(const char* path) { return below_.rmdir(path); }
int ConsumedFiles::unlink(const char* path) { return below_.unlink(path); }
int ConsumedFiles::rename(const char* from, const char* to) { return below_.rename(from, to); }
int ConsumedFiles::renameat2(const char* from, const char* to, unsigned flags) {
  return below_.renameat2(from, to, flags);
}

void ConsumedFiles::keep(std::span<const fs::path> files) {
  std::map<std::string, KeptPtr> wanted;
  notes_ = false;
  for (const fs::path& file : files) {
    const std::string name = resolved(file.c_str());
    if (name.empty()) fail_errno(errno, "find", file);
    const auto kept = kept_.find(name);
    if (kept == kept_.end())
      fail(ErrorCode::Io, {file.string(), {}}, "{}: cannot be found any more by the name it was opened by",
           file.string());
    wanted.insert(*kept);
  }
  for (const auto& [name, kept] : wanted) {
    if (kept->removed || !kept->parts.empty()) continue;
    const File file = File::open_read(name);
    for (const auto& [offset, bytes] : kept->joined()) {
      std::string& part = kept->parts[offset];
      part.resize(static_cast<std::size_t>(bytes));
      file.pread_exact(std::as_writable_bytes(std::span(part)), offset);
    }
    kept->read.clear();
  }
  const std::unique_lock lock(mutex_);
  kept_ = std::move(wanted);
}

i64 ConsumedFiles::kept_bytes() const {
  constexpr i64 kNumbers = 8, kNumbersOfPart = 2;
  i64 bytes = 0;
  for (const auto& [name, kept] : kept_) {
    bytes += std::ssize(name) + kNumbers * i64{sizeof(i64)};
    for (const auto& [offset, part] : kept->parts) bytes += std::ssize(part) + kNumbersOfPart * i64{sizeof(i64)};
  }
  return bytes;
}

void ConsumedFiles::save(const fs::path& path, std::string_view fingerprint, std::string_view memo) {
  ByteWriter out;
  out.text(fingerprint);
  out.text(memo);
  out.text(source_);
  out.number(std::ssize(kept_));
  for (const auto& [name, kept] : kept_) {
    out.text(name);
    const FileIdentity& identity = kept->identity;
    for (const i64 number : {static_cast<i64>(identity.dev), static_cast<i64>(identity.ino), identity.size,
                             identity.mtime_ns, identity.ctime_ns, kept->mode, i64{std::ssize(kept->parts)}})
      out.number(number);
    for (const auto& [offset, part] : kept->parts) {
      out.number(offset);
      out.text(part);
    }
  }
  const std::vector<std::byte> content = out.take();
  std::string text = hex(hash128(content, 0));
  text.append(reinterpret_cast<const char*>(content.data()), content.size());
  // A torn one must not pass for the real one, nor be in its way.
  const fs::path made = path.parent_path() / "source.new";
  if (const int error = remove_own(made, Own::InStaging); error != 0) fail_errno(error, "remove", made);
  write_small_file(made, text);
  replace_own(made, path, Own::InStaging);
  sync_directory(path.parent_path());
  fingerprint_ = fingerprint;
  memo_ = memo;
}

/// Returns whether the file is the kept one, or a copy of it with its date.
bool ConsumedFiles::is_copy(const Kept& kept, const struct stat& info, const fs::path& file) {
  if (info.st_size != kept.identity.size || in_nanoseconds(info.st_mtim) != kept.identity.mtime_ns) return false;
  if (info.st_ino == kept.identity.ino && info.st_dev == kept.identity.dev) return true;
  const File copy = File::open_read(file);
  std::string there;
  return std::ranges::all_of(kept.parts, [&](const auto& part) {
    there.resize(part.second.size());
    copy.pread_exact(std::as_writable_bytes(std::span(there)), part.first);
    return there == part.second;
  });
}

std::optional<ConsumedFiles::Found> ConsumedFiles::found_first(const fs::path& file) const {
  const std::string name = resolved(file.c_str());
  const std::shared_lock lock(mutex_);
  const auto kept = kept_.find(name);
  return kept == kept_.end() ? std::nullopt : kept->second->found;
}

void ConsumedFiles::load(const fs::path& path) {
  const std::string name = path.string();
  const std::string text = read_small_file(path, kMostKept, ErrorCode::Io);
  const std::size_t hash_bytes = hex(Hash128()).size();
  const auto content = std::as_bytes(std::span(text)).subspan(std::min(hash_bytes, text.size()));
  if (text.size() < hash_bytes || text.substr(0, hash_bytes) != hex(hash128(content, 0)))
    fail(ErrorCode::Io, {name, {}},
         "{}: is damaged. It says what the source's removed files were; what was written of them is beside it", name);
  ByteReader in(content, name);
  fingerprint_ = in.text();
  memo_ = in.text();
  const std::string source = in.text();
  for (std::size_t files = in.count(9 * sizeof(i64)); files > 0; --files) {
    const std::string first = in.text();
    const bool is_below = first == source || first.starts_with(source + "/");
    const std::string file = is_below ? source_ + first.substr(source.size()) : first;
    auto kept = std::make_shared<Kept>();
    kept->identity.dev = static_cast<u64>(in.number());
    kept->identity.ino = static_cast<u64>(in.number());
    kept->identity.size = in.number();
    kept->identity.mtime_ns = in.number();
    kept->identity.ctime_ns = in.number();
    kept->mode = in.number();
    for (std::size_t parts = in.count(2 * sizeof(i64)); parts > 0; --parts) {
      const i64 offset = in.number();
      kept->parts[offset] = in.text();
    }
    struct stat info {};
    const bool is_there = below_.lstat(file.c_str(), &info) == 0;
    kept->removed = !is_there && errno == ENOENT;
    if (kept->removed || (is_there && is_copy(*kept, info, file))) kept->found = Found{first, kept->identity};
    // A copy goes on as itself once it is removed.
    if (is_there && kept->found) kept->identity = identity_of(info);
    kept_[file] = std::move(kept);
  }
  in.end();
  notes_ = false;
  loaded_ = true;
}

void ConsumedFiles::release(const fs::path& file) {
  const std::string name = resolved(file.c_str());
  if (name.empty()) fail_errno(errno, "find", file);
  struct stat info {};
  if (below_.lstat(name.c_str(), &info) != 0) fail_errno(errno, "look at", file);
  std::vector<OpenedPtr> open;
  {
    const std::unique_lock lock(mutex_);
    const KeptPtr& kept = kept_.at(name);
    // Its permissions may have changed since an earlier run noted it.
    kept->identity.ctime_ns = in_nanoseconds(info.st_ctim);
    kept->removed = true;
    for (const auto& [descriptor, opened] : opened_)
      if (opened->kept == kept) open.push_back(opened);
  }
  for (const OpenedPtr& opened : open) {
    const std::unique_lock lock(opened->mutex);
    if (opened->real >= 0) (void)below_.close(std::exchange(opened->real, -1));
  }
}

bool ConsumedFiles::is_removed(const fs::path& file) const {
  const std::string name = resolved(file.c_str());
  if (name.empty()) fail_errno(errno, "find", file);
  const std::shared_lock lock(mutex_);
  const auto kept = kept_.find(name);
  return kept != kept_.end() && kept->second->removed;
}

bool ConsumedFiles::has_removed() const {
  const std::shared_lock lock(mutex_);
  return std::ranges::any_of(kept_, [](const auto& entry) { return entry.second->removed.load(); });
}

}  // namespace glu_ckpt
