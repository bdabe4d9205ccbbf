/// The tree of MemorySystem, its faults and its crashes; the system calls are in memory_calls.cpp.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "support/memory_node.hpp"

namespace glu_ckpt {
namespace {

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

// Faults.

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

// Crash.

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

// For a test's eyes.

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

}  // namespace glu_ckpt
