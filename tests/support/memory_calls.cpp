/// The system calls of MemorySystem.

#include <gtest/gtest.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "support/memory_node.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kBlock = MemoryBytes::kBlockBytes;

}  // namespace

template <typename Body>
auto MemorySystem::call(CallKind kind, const Body& body) -> decltype(body()) {
  run_action(kind);
  const std::lock_guard lock(mutex_);
  using Result = decltype(body());
  const int error = injected_error(kind);
  // A descriptor is gone after close(), whatever that says.
  if (error != 0 && kind == CallKind::Close) (void)body();
  const Result result = error != 0 ? static_cast<Result>(-error) : body();
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

MemorySystem::OpenFile* MemorySystem::opened(int descriptor) const {
  const auto found = open_.find(descriptor);
  return found == open_.end() ? nullptr : found->second.get();
}

int MemorySystem::open(const char* path, int flags, mode_t mode) {
  return call(CallKind::Open, [&]() -> int {
    Place place;
    const bool exclusive = (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0;
    if (const int error = find(path, !exclusive && (flags & O_NOFOLLOW) == 0, place); error != 0) return -error;
    if (place.node && exclusive) return -EEXIST;
    if (!place.node && (flags & O_CREAT) == 0) return -ENOENT;
    if ((flags & O_DIRECT) != 0 && !can_direct_) return -EINVAL;
    const bool writes = (flags & O_ACCMODE) != O_RDONLY;
    if (place.node && S_ISLNK(place.node->mode)) return -ELOOP;
    if ((flags & O_TMPFILE) == O_TMPFILE) {
      if (!place.node || !place.node->is_directory()) return -ENOTDIR;
      if (!writes) return -EINVAL;
      place = {};
      place.node = make_node(S_IFREG | (mode & 07777 & ~022u));
      return add_descriptor(place.node, flags);
    }
    if (place.node && place.node->is_directory() && writes) return -EISDIR;
    if (place.node && !place.node->is_directory() && (flags & O_DIRECTORY) != 0) return -ENOTDIR;
    if (!place.node) {
      place.node = make_node(S_IFREG | (mode & 07777 & ~022u));
      place.parent->names[place.name] = place.node;
      touch(*place.parent);
    } else if ((flags & O_TRUNC) != 0 && writes) {
      place.node->bytes.resize(0);
      touch(*place.node);
    }
    return add_descriptor(place.node, flags);
  });
}

int MemorySystem::add_descriptor(const NodePtr& node, int flags) {
  const int descriptor = next_descriptor_++;
  open_[descriptor] = std::make_unique<OpenFile>(OpenFile{node, flags});
  return descriptor;
}

int MemorySystem::close(int descriptor) {
  return call(CallKind::Close, [&]() -> int {
    const OpenFile* file = opened(descriptor);
    if (file == nullptr) return -EBADF;
    if (file->node->locked_by == file) file->node->locked_by = nullptr;
    open_.erase(descriptor);
    return 0;
  });
}

i64 MemorySystem::allowed_bytes(i64 wanted) const {
  if (transfer_ == Transfer::Half) return std::max<i64>(wanted / 2, std::min<i64>(wanted, 1));
  if (transfer_ == Transfer::OneByte) return std::min<i64>(wanted, 1);
  return wanted;
}

bool MemorySystem::is_aligned(const OpenFile& file, const iovec* pieces, int count, i64 offset) const {
  if ((file.flags & O_DIRECT) == 0) return true;
  if (offset % kBlock != 0) return false;
  return std::all_of(pieces, pieces + count, [](const iovec& piece) {
    return reinterpret_cast<std::uintptr_t>(piece.iov_base) % kBlock == 0 && piece.iov_len % kBlock == 0;
  });
}

/// Blocks that the file does not have yet come out of the free ones.
int MemorySystem::write_to(Node& node, const void* from, i64 bytes, i64 offset) {
  const i64 begin = std::max(node.reserved, offset / kBlock * kBlock);
  const i64 end = (offset + bytes + kBlock - 1) / kBlock * kBlock;
  const i64 more = std::max<i64>(0, end - begin) - node.bytes.taken(begin, end);
  if (more > free_bytes_) return ENOSPC;
  free_bytes_ -= more;
  node.bytes.write(from, bytes, offset);
  touch(node);
  return 0;
}

ssize_t MemorySystem::move_bytes(int descriptor, const iovec* pieces, int count, i64 offset, bool write) {
  return call(write ? CallKind::Write : CallKind::Read, [&]() -> ssize_t {
    OpenFile* file = opened(descriptor);
    if (file == nullptr || (write && !file->can_write()) || (file->flags & O_ACCMODE) == (write ? O_RDONLY : O_WRONLY))
      return -EBADF;
    if (file->node->is_directory()) return -EISDIR;
    if (offset < 0 || count < 0 || count > IOV_MAX) return -EINVAL;
    if (!is_aligned(*file, pieces, count, offset)) {
      // Whoever gets the error takes another way without a word. After a short transfer there is no other.
      if (transfer_ == Transfer::Whole && !allow_misaligned_)
        ADD_FAILURE() << "direct I/O that no disk takes, at " << offset;
      return -EINVAL;
    }
    i64 wanted = 0;
    for (int i = 0; i < count; ++i) wanted += static_cast<i64>(pieces[i].iov_len);
    if (!write) wanted = std::max<i64>(0, std::min(wanted, file->node->bytes.size() - offset));
    const i64 allowed = allowed_bytes(wanted);
    i64 done = 0;
    for (int i = 0; i < count && done < allowed; ++i) {
      const i64 now = std::min(allowed - done, static_cast<i64>(pieces[i].iov_len));
      if (!write) file->node->bytes.read(pieces[i].iov_base, now, offset + done);
      if (write)
        if (const int error = write_to(*file->node, pieces[i].iov_base, now, offset + done); error != 0)
          return done > 0 ? done : -error;
      done += now;
    }
    if (!write && (file->flags & O_DIRECT) != 0) bytes_past_cache_ += done;
    return done;
  });
}

ssize_t MemorySystem::pread(int descriptor, void* out, std::size_t bytes, i64 offset) {
  const iovec piece{out, bytes};
  return move_bytes(descriptor, &piece, 1, offset, false);
}

ssize_t MemorySystem::preadv(int descriptor, const iovec* pieces, int count, i64 offset) {
  return move_bytes(descriptor, pieces, count, offset, false);
}

ssize_t MemorySystem::pwrite(int descriptor, const void* from, std::size_t bytes, i64 offset) {
  const iovec piece{const_cast<void*>(from), bytes};
  return move_bytes(descriptor, &piece, 1, offset, true);
}

ssize_t MemorySystem::copy_file_range(int from, i64* from_offset, int to, i64* to_offset, std::size_t bytes) {
  return call(CallKind::Copy, [&]() -> ssize_t {
    const OpenFile* source = opened(from);
    const OpenFile* target = opened(to);
    if (source == nullptr || target == nullptr || !target->can_write()) return -EBADF;
    const i64 there = std::max<i64>(0, source->node->bytes.size() - *from_offset);
    const i64 now = allowed_bytes(std::min(static_cast<i64>(bytes), there));
    std::vector<char> block(static_cast<std::size_t>(now));
    source->node->bytes.read(block.data(), now, *from_offset);
    if (const int error = write_to(*target->node, block.data(), now, *to_offset); error != 0) return -error;
    *from_offset += now;
    *to_offset += now;
    return now;
  });
}

int MemorySystem::clone_range(int from, i64 from_offset, i64 bytes, int to, i64 to_offset) {
  return call(CallKind::Clone, [&]() -> int {
    const OpenFile* source = opened(from);
    const OpenFile* target = opened(to);
    if (source == nullptr || target == nullptr || !target->can_write()) return -EBADF;
    if (!can_clone_) return -EOPNOTSUPP;
    const i64 there = source->node->bytes.size();
    const i64 end = bytes == 0 ? there : from_offset + bytes;
    if (from_offset % kBlock != 0 || to_offset % kBlock != 0 || end > there) return -EINVAL;
    const i64 now = end - from_offset;
    // A part of a block can be shared only where it is the end of both files.
    if (end % kBlock != 0 && (end != there || to_offset + now < target->node->bytes.size())) return -EINVAL;
    std::vector<char> block(static_cast<std::size_t>(now));
    source->node->bytes.read(block.data(), now, from_offset);
    return -write_to(*target->node, block.data(), now, to_offset);
  });
}

int MemorySystem::sync_node(int descriptor) {
  return call(CallKind::Sync, [&]() -> int {
    const OpenFile* file = opened(descriptor);
    if (file == nullptr) return -EBADF;
    file->node->synced_bytes = file->node->bytes;
    file->node->synced_names = file->node->names;
    return 0;
  });
}

int MemorySystem::fsync(int descriptor) { return sync_node(descriptor); }
int MemorySystem::fdatasync(int descriptor) { return sync_node(descriptor); }

int MemorySystem::sync_file_range(int descriptor, i64, i64, unsigned) {
  return call(CallKind::Advise, [&]() -> int { return opened(descriptor) == nullptr ? -EBADF : 0; });
}

int MemorySystem::posix_fadvise(int descriptor, i64, i64, int) {
  return call(CallKind::Advise, [&]() -> int { return opened(descriptor) == nullptr ? -EBADF : 0; });
}

i64 MemorySystem::cached_bytes(int descriptor, i64, i64 bytes) {
  return call(CallKind::Advise,
              [&]() -> i64 { return opened(descriptor) == nullptr ? -EBADF : bytes * cached_percent_ / 100; });
}

int MemorySystem::fallocate(int descriptor, int mode, i64 offset, i64 bytes) {
  return call(CallKind::Reserve, [&]() -> int {
    const OpenFile* file = opened(descriptor);
    if (file == nullptr || !file->can_write()) return -EBADF;
    if (offset < 0 || bytes <= 0) return -EINVAL;
    if (!can_reserve_ || mode != 0) return -EOPNOTSUPP;
    Node& node = *file->node;
    const i64 end = (offset + bytes + kBlock - 1) / kBlock * kBlock;
    const i64 more = std::max<i64>(0, end - node.reserved) - node.bytes.taken(node.reserved, end);
    if (more > free_bytes_) return -ENOSPC;
    free_bytes_ -= more;
    node.reserved = std::max(node.reserved, end);
    node.bytes.resize(std::max(node.bytes.size(), offset + bytes));
    touch(node);
    return 0;
  });
}

int MemorySystem::ftruncate(int descriptor, i64 bytes) {
  return call(CallKind::Resize, [&]() -> int {
    const OpenFile* file = opened(descriptor);
    if (file == nullptr) return -EBADF;
    if (bytes < 0 || !file->can_write() || file->node->is_directory()) return -EINVAL;
    Node& node = *file->node;
    const i64 end = (bytes + kBlock - 1) / kBlock * kBlock;
    const i64 before = node.blocks();
    node.reserved = std::min(node.reserved, end);
    node.bytes.resize(bytes);
    free_bytes_ += before - node.blocks();
    touch(node);
    return 0;
  });
}

int MemorySystem::flock(int descriptor, int operation) {
  return call(CallKind::Lock, [&]() -> int {
    const OpenFile* file = opened(descriptor);
    if (file == nullptr) return -EBADF;
    if (!can_lock_) return -ENOLCK;
    Node& node = *file->node;
    const bool mine = node.locked_by == file;
    if ((operation & LOCK_UN) != 0) {
      if (mine) node.locked_by = nullptr;
      return 0;
    }
    // Locks that are shared, and such as wait, are not needed here.
    if (operation != (LOCK_EX | LOCK_NB)) return -EINVAL;
    if (node.locked_by != nullptr && !mine) return -EWOULDBLOCK;
    node.locked_by = file;
    return 0;
  });
}

int MemorySystem::fchmod(int descriptor, mode_t mode) {
  return call(CallKind::Mode, [&]() -> int {
    const OpenFile* file = opened(descriptor);
    if (file == nullptr) return -EBADF;
    file->node->mode = (file->node->mode & S_IFMT) | (mode & 07777);
    file->node->ctime_ns = ++clock_ns_;
    return 0;
  });
}

// What is there.

int MemorySystem::stat_node(const Node& node, struct stat* info) const {
  *info = {};
  info->st_dev = 77;
  info->st_ino = node.ino;
  info->st_uid = ::geteuid();
  info->st_mode = node.mode;
  info->st_nlink = 1;
  info->st_size = S_ISLNK(node.mode) ? static_cast<off_t>(node.target.size()) : node.bytes.size();
  info->st_blksize = kBlock;
  info->st_mtim = {node.mtime_ns / 1'000'000'000, node.mtime_ns % 1'000'000'000};
  info->st_ctim = {node.ctime_ns / 1'000'000'000, node.ctime_ns % 1'000'000'000};
  return 0;
}

int MemorySystem::fstat(int descriptor, struct stat* info) {
  return call(CallKind::Stat, [&]() -> int {
    const OpenFile* file = opened(descriptor);
    return file == nullptr ? -EBADF : stat_node(*file->node, info);
  });
}

int MemorySystem::stat_path(const char* path, bool follow, struct stat* info) {
  return call(CallKind::Stat, [&]() -> int {
    Place place;
    if (const int error = find(path, follow, place); error != 0) return -error;
    return place.node ? stat_node(*place.node, info) : -ENOENT;
  });
}

int MemorySystem::stat(const char* path, struct stat* info) { return stat_path(path, true, info); }
int MemorySystem::lstat(const char* path, struct stat* info) { return stat_path(path, false, info); }

int MemorySystem::statfs(const char* path, struct statfs* info) {
  return call(CallKind::Statfs, [&]() -> int {
    Place place;
    if (const int error = find(path, true, place); error != 0) return -error;
    if (!place.node) return -ENOENT;
    *info = {};
    info->f_type = 0xef53;
    info->f_bsize = kBlock;
    info->f_bavail = info->f_bfree = static_cast<fsblkcnt_t>(free_bytes_ / kBlock);
    info->f_blocks = info->f_bfree + 1;
    return 0;
  });
}

ssize_t MemorySystem::readlink(const char* path, char* out, std::size_t bytes) {
  return call(CallKind::Link, [&]() -> ssize_t {
    Place place;
    if (const int error = find(path, false, place); error != 0) return -error;
    if (!place.node) return -ENOENT;
    if (!S_ISLNK(place.node->mode)) return -EINVAL;
    return static_cast<ssize_t>(place.node->target.copy(out, bytes));
  });
}

int MemorySystem::realpath(const char* path, std::string& out) {
  return call(CallKind::Link, [&]() -> int {
    Place place;
    if (const int error = find(path, true, place); error != 0) return -error;
    if (!place.node) return -ENOENT;
    out = place.path;
    return 0;
  });
}

int MemorySystem::list(const char* path, std::vector<std::string>& names) {
  return call(CallKind::List, [&]() -> int {
    Place place;
    if (const int error = find(path, true, place); error != 0) return -error;
    if (!place.node) return -ENOENT;
    if (!place.node->is_directory()) return -ENOTDIR;
    names.clear();
    // From the last to the first: a filesystem promises no order.
    for (auto it = place.node->names.rbegin(); it != place.node->names.rend(); ++it) names.push_back(it->first);
    return 0;
  });
}

// Names.

int MemorySystem::mkdir(const char* path, mode_t mode) {
  return call(CallKind::MakeDirectory, [&]() -> int {
    Place place;
    if (const int error = find(path, false, place); error != 0) return -error;
    if (place.node) return -EEXIST;
    place.parent->names[place.name] = make_node(S_IFDIR | (mode & 07777 & ~022u));
    touch(*place.parent);
    return 0;
  });
}

int MemorySystem::rmdir(const char* path) {
  return call(CallKind::Remove, [&]() -> int {
    Place place;
    if (const int error = find(path, false, place); error != 0) return -error;
    if (!place.node) return -ENOENT;
    if (!place.node->is_directory()) return -ENOTDIR;
    if (!place.parent) return -EBUSY;
    if (!place.node->names.empty()) return -ENOTEMPTY;
    place.parent->names.erase(place.name);
    touch(*place.parent);
    return 0;
  });
}

int MemorySystem::unlink(const char* path) {
  return call(CallKind::Remove, [&]() -> int {
    Place place;
    if (const int error = find(path, false, place); error != 0) return -error;
    if (!place.node) return -ENOENT;
    if (place.node->is_directory()) return -EISDIR;
    free_bytes_ += place.node->blocks();
    place.node->reserved = 0;
    place.parent->names.erase(place.name);
    touch(*place.parent);
    return 0;
  });
}

int MemorySystem::rename_to(const char* from, const char* to, unsigned flags) {
  return call(CallKind::Rename, [&]() -> int {
    if (flags != 0 && flags != RENAME_NOREPLACE && flags != RENAME_EXCHANGE) return -EINVAL;
    if (flags != 0 && !can_rename_flags_) return -EINVAL;
    Place source;
    Place target;
    if (const int error = find(from, false, source); error != 0) return -error;
    if (const int error = find(to, false, target); error != 0) return -error;
    if (!source.node || (flags == RENAME_EXCHANGE && !target.node)) return -ENOENT;
    if (!source.parent || !target.parent) return -EBUSY;
    if (flags == RENAME_NOREPLACE && target.node) return -EEXIST;
    if (source.node == target.node) return 0;
    const bool directory = source.node->is_directory();
    if (directory && target.path.starts_with(source.path + "/")) return -EINVAL;
    if (flags != RENAME_EXCHANGE && target.node) {
      if (directory && !target.node->is_directory()) return -ENOTDIR;
      if (!directory && target.node->is_directory()) return -EISDIR;
      if (!target.node->names.empty()) return -ENOTEMPTY;
    }
    target.parent->names[target.name] = source.node;
    if (flags == RENAME_EXCHANGE)
      source.parent->names[source.name] = target.node;
    else
      source.parent->names.erase(source.name);
    touch(*source.parent);
    touch(*target.parent);
    return 0;
  });
}

int MemorySystem::rename(const char* from, const char* to) { return rename_to(from, to, 0); }
int MemorySystem::renameat2(const char* from, const char* to, unsigned flags) { return rename_to(from, to, flags); }

}  // namespace glu_ckpt
