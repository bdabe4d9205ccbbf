#include "support/memory_system.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace glu_ckpt {
namespace {

constexpr i64 kBlock = MemoryBytes::kBlockBytes;
constexpr int kMaxLinks = 40;

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool can_be_interrupted(CallKind kind) {
  switch (kind) {
    case CallKind::Open:
    case CallKind::Read:
    case CallKind::Write:
    case CallKind::Copy:
    case CallKind::Clone:
    case CallKind::Sync:
    case CallKind::Reserve:
    case CallKind::Resize:
    case CallKind::Lock:
    case CallKind::Mode: return true;
    default: return false;
  }
}

}  // namespace

// ---- bytes
// ------------------------------------------------------------------------------------------------------------

void MemoryBytes::resize(i64 size) {
  if (size < size_) {
    blocks_.erase(blocks_.lower_bound((size + kBlockBytes - 1) / kBlockBytes), blocks_.end());
    // What lies past the end of the last block must read as zeros if the file grows again.
    const auto last = blocks_.find(size / kBlockBytes);
    if (last != blocks_.end()) {
      auto block = std::make_shared<Block>(*last->second);
      std::fill(block->begin() + size % kBlockBytes, block->end(), '\0');
      last->second = std::move(block);
    }
  }
  size_ = size;
}

void MemoryBytes::read(void* out, i64 bytes, i64 offset) const {
  for (i64 done = 0; done < bytes;) {
    const i64 at = offset + done;
    const i64 within = at % kBlockBytes;
    const i64 now = std::min(bytes - done, kBlockBytes - within);
    const auto block = blocks_.find(at / kBlockBytes);
    char* const to = static_cast<char*>(out) + done;
    if (block == blocks_.end())
      std::memset(to, 0, static_cast<std::size_t>(now));
    else
      std::memcpy(to, block->second->data() + within, static_cast<std::size_t>(now));
    done += now;
  }
}

void MemoryBytes::write(const void* from, i64 bytes, i64 offset) {
  for (i64 done = 0; done < bytes;) {
    const i64 at = offset + done;
    const i64 within = at % kBlockBytes;
    const i64 now = std::min(bytes - done, kBlockBytes - within);
    std::shared_ptr<Block>& block = blocks_[at / kBlockBytes];
    if (!block)
      block = std::make_shared<Block>();
    else if (block.use_count() > 1)
      block = std::make_shared<Block>(*block);
    std::memcpy(block->data() + within, static_cast<const char*>(from) + done, static_cast<std::size_t>(now));
    done += now;
  }
  size_ = std::max(size_, offset + bytes);
}

// ---- nodes
// ------------------------------------------------------------------------------------------------------------

struct MemorySystem::Node {
  u64 ino = 0;
  mode_t mode = 0;
  i64 mtime_ns = 0;
  i64 ctime_ns = 0;
  /// Of a file, now and as flushed.
  MemoryBytes bytes;
  MemoryBytes synced_bytes;
  /// Bytes that the filesystem has set apart for the file.
  i64 reserved = 0;
  /// Of a directory.
  std::map<std::string, NodePtr> names;
  std::map<std::string, NodePtr> synced_names;
  std::string target;
  const OpenFile* locked_by = nullptr;

  bool is_directory() const { return S_ISDIR(mode); }
};

struct MemorySystem::OpenFile {
  NodePtr node;
  int flags = 0;
  bool can_write() const { return (flags & O_ACCMODE) != O_RDONLY; }
};

/// A name in a directory, and what it names: null where nothing does.
struct MemorySystem::Place {
  NodePtr parent;
  std::string name;
  NodePtr node;
  /// Without symlinks.
  std::string path;
};

MemorySystem::MemorySystem() { root_ = make_node(S_IFDIR | 0755); }
MemorySystem::~MemorySystem() = default;

MemorySystem::NodePtr MemorySystem::make_node(mode_t mode) {
  auto node = std::make_shared<Node>();
  node->ino = next_ino_++;
  node->mode = mode;
  touch(*node);
  return node;
}

void MemorySystem::touch(Node& node) { node.mtime_ns = node.ctime_ns = ++clock_ns_; }

/// 0 with a place whose node may be null, where only the last name is missing; else an errno.
int MemorySystem::find(const std::string& path, bool follow, Place& place, int links) const {
  if (path.empty()) return ENOENT;
  std::vector<NodePtr> chain = {root_};
  std::vector<std::string> names;
  place = {nullptr, {}, root_, "/"};
  const std::vector<std::string> parts = parts_of(path);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!chain.back()) return ENOENT;
    if (!chain.back()->is_directory()) return ENOTDIR;
    if (parts[i] == ".") continue;
    if (parts[i] == "..") {
      if (chain.size() > 1) chain.pop_back(), names.pop_back();
      continue;
    }
    const auto found = chain.back()->names.find(parts[i]);
    const NodePtr node = found == chain.back()->names.end() ? nullptr : found->second;
    const bool last = i + 1 == parts.size();
    if (node && S_ISLNK(node->mode) && (follow || !last)) {
      if (links >= kMaxLinks) return ELOOP;
      std::string rest = node->target;
      if (!rest.starts_with('/')) {
        std::string above;
        for (const std::string& name : names) above += "/" + name;
        rest = above + "/" + rest;
      }
      for (std::size_t j = i + 1; j < parts.size(); ++j) rest += "/" + parts[j];
      return find(rest, follow, place, links + 1);
    }
    chain.push_back(node);
    names.push_back(parts[i]);
  }
  place.node = chain.back();
  if (chain.size() > 1) {
    place.parent = chain[chain.size() - 2];
    place.name = names.back();
    place.path.clear();
    for (const std::string& name : names) place.path += "/" + name;
  }
  return 0;
}

// ---- faults
// -----------------------------------------------------------------------------------------------------------

int MemorySystem::injected_error(CallKind kind) {
  ++calls_;
  const i64 of_kind = ++calls_of_[kind];
  if (stop_at_ && calls_ >= *stop_at_) return EIO;
  for (const Fault& fault : faults_)
    if (fault.number == (fault.kind ? of_kind : calls_) && (!fault.kind || *fault.kind == kind)) return fault.error;
  if (!interrupt_ || !can_be_interrupted(kind)) return 0;
  interrupt_next_ = !interrupt_next_;
  return interrupt_next_ ? EINTR : 0;
}

void MemorySystem::run_action(CallKind kind) {
  std::optional<Action> due;
  {
    const std::lock_guard lock(mutex_);
    if (action_ && action_->kind == kind && calls_of_[kind] + 1 >= action_->number) due = std::exchange(action_, {});
  }
  if (due) due->run();
}

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

i64 MemorySystem::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

i64 MemorySystem::calls(CallKind kind) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_of_.find(kind);
  return found == calls_of_.end() ? 0 : found->second;
}

void MemorySystem::fail(i64 number, int error) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({{}, number, error});
}

void MemorySystem::fail(CallKind kind, i64 number, int error) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({kind, number, error});
}

void MemorySystem::before(CallKind kind, i64 number, std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  action_ = {kind, number, std::move(action)};
}

void MemorySystem::stop_at(i64 number) {
  const std::lock_guard lock(mutex_);
  stop_at_ = number;
}

void MemorySystem::interrupt(bool on) {
  const std::lock_guard lock(mutex_);
  interrupt_ = on;
  interrupt_next_ = false;
}

void MemorySystem::set_transfer(Transfer transfer) {
  const std::lock_guard lock(mutex_);
  transfer_ = transfer;
}

void MemorySystem::reset() {
  const std::lock_guard lock(mutex_);
  calls_ = 0;
  calls_of_.clear();
  faults_.clear();
  stop_at_.reset();
  action_.reset();
  interrupt_ = false;
  transfer_ = Transfer::Whole;
}

void MemorySystem::allow_direct(bool on) { can_direct_ = on; }
void MemorySystem::allow_clone(bool on) { can_clone_ = on; }
void MemorySystem::set_free_descriptors(i64 count) { descriptor_limit_ = next_descriptor_ + count; }
i64 MemorySystem::bytes_past_cache() const {
  const std::lock_guard lock(mutex_);
  return bytes_past_cache_;
}
void MemorySystem::set_cached_percent(int percent) { cached_percent_ = percent; }
void MemorySystem::allow_reserve(bool on) { can_reserve_ = on; }
void MemorySystem::allow_lock(bool on) { can_lock_ = on; }
void MemorySystem::allow_rename_flags(bool on) { can_rename_flags_ = on; }
void MemorySystem::set_free_bytes(i64 bytes) {
  const std::lock_guard lock(mutex_);
  free_bytes_ = bytes;
}

// ---- crash
// ------------------------------------------------------------------------------------------------------------

/// A node as the crash leaves it. One node under two names stays one.
MemorySystem::NodePtr MemorySystem::survivor(const NodePtr& node, Crash what, std::map<const Node*, NodePtr>& made) {
  if (const auto found = made.find(node.get()); found != made.end()) return found->second;
  auto left = std::make_shared<Node>(*node);
  made.emplace(node.get(), left);
  left->locked_by = nullptr;
  const bool all_names = what != Crash::KeepSynced && what != Crash::KeepData;
  left->names.clear();
  for (const auto& [name, below] : all_names ? node->names : node->synced_names)
    left->names.emplace(name, survivor(below, what, made));
  left->synced_names = left->names;
  const bool all_data = what == Crash::KeepAll || what == Crash::KeepData;
  if (!all_data) {
    left->bytes = node->synced_bytes;
    if (what == Crash::KeepNames) left->bytes.resize(node->bytes.size());
  }
  left->synced_bytes = left->bytes;
  return left;
}

void MemorySystem::crash(Crash what) {
  const std::lock_guard lock(mutex_);
  std::map<const Node*, NodePtr> made;
  root_ = survivor(root_, what, made);
  open_.clear();
  stop_at_.reset();
}

// ---- for a test's eyes
// ------------------------------------------------------------------------------------------------

MemorySystem::NodePtr MemorySystem::directory_for(const std::filesystem::path& path) {
  NodePtr at = root_;
  for (const std::string& name : parts_of(path.string())) {
    if (!at->names.contains(name)) {
      at->names[name] = make_node(S_IFDIR | 0755);
      at->synced_names[name] = at->names[name];
    }
    at = at->names[name];
  }
  return at;
}

void MemorySystem::put(const std::filesystem::path& path, std::string_view text) {
  const std::lock_guard lock(mutex_);
  const NodePtr directory = directory_for(path.parent_path());
  const NodePtr file = make_node(S_IFREG | 0644);
  file->bytes.write(text.data(), static_cast<i64>(text.size()), 0);
  file->synced_bytes = file->bytes;
  directory->names[path.filename().string()] = file;
  directory->synced_names[path.filename().string()] = file;
}

void MemorySystem::make_symlink(const std::string& target, const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  const NodePtr directory = directory_for(path.parent_path());
  const NodePtr link = make_node(S_IFLNK | 0777);
  link->target = target;
  directory->names[path.filename().string()] = link;
  directory->synced_names[path.filename().string()] = link;
}

std::optional<std::string> MemorySystem::get(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  Place place;
  if (find(path.string(), true, place) != 0 || !place.node || !S_ISREG(place.node->mode)) return {};
  std::string text(static_cast<std::size_t>(place.node->bytes.size()), '\0');
  place.node->bytes.read(text.data(), place.node->bytes.size(), 0);
  return text;
}

std::vector<std::string> MemorySystem::tree(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  Place place;
  std::vector<std::string> found;
  if (find(path.string(), true, place) != 0 || !place.node) return found;
  std::vector<std::pair<std::string, NodePtr>> left = {{"", place.node}};
  while (!left.empty()) {
    const auto [prefix, node] = left.back();
    left.pop_back();
    for (const auto& [name, below] : node->names) {
      found.push_back(prefix + name + (below->is_directory() ? "/" : ""));
      if (below->is_directory()) left.emplace_back(found.back(), below);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

int MemorySystem::open_descriptors() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(open_.size());
}

// ---- descriptors
// ------------------------------------------------------------------------------------------------------

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
  const i64 end = (offset + bytes + kBlock - 1) / kBlock * kBlock;
  if (end - node.reserved > free_bytes_) return ENOSPC;
  if (end > node.reserved) {
    free_bytes_ -= end - node.reserved;
    node.reserved = end;
  }
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

ssize_t MemorySystem::pwritev(int descriptor, const iovec* pieces, int count, i64 offset) {
  return move_bytes(descriptor, pieces, count, offset, true);
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
    const i64 more = std::max<i64>(0, end - node.reserved);
    if (more > free_bytes_) return -ENOSPC;
    free_bytes_ -= more;
    node.reserved += more;
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
    free_bytes_ += std::max<i64>(0, node.reserved - end);
    node.reserved = std::min(node.reserved, end);
    node.bytes.resize(bytes);
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

// ---- what is there
// ----------------------------------------------------------------------------------------------------

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

// ---- names
// ------------------------------------------------------------------------------------------------------------

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
    free_bytes_ += place.node->reserved;
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
