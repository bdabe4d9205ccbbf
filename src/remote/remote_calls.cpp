#include "remote/remote_calls.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <set>

#include "core/fail.hpp"
#include "core/hash.hpp"
#include "core/parallel.hpp"
#include "io/system_calls.hpp"
#include "remote/fetcher.hpp"
#include "remote/passing_hash.hpp"
#include "remote/read_cache.hpp"

namespace glu_ckpt {
namespace {

constexpr auto kSchemes = std::to_array<std::string_view>({"hf", "s3", "http", "https"});
/// Endings of files that somebody names by themselves; any other name is a directory's.
constexpr auto kFileEndings = std::to_array<std::string_view>(
    {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".json", ".distcp", ".gguf", ".npz", ".metadata"});
constexpr std::string_view kIndexEnding = ".index.json";

/// The numbers of descriptors that are none of the kernel's, which refuses them.
constexpr int kFirstDescriptor = 1 << 29;
/// What is fetched at first: most headers, and most other files whole.
constexpr i64 kFirstHead = i64{256} << 10, kLongestHead = i64{4} << 20;
constexpr i64 kHeadsAtOnce = 16;
constexpr i64 kPage = 4096;
constexpr i64 kAheadBytes = i64{4} << 20;
/// What addresses may take beside their callers' buffers: a quarter of all memory or 40 MiB, of which a fifth is for
/// bytes that are kept, and the rest for those that wait for the SHA-256.
constexpr i64 kMemoryShare = 4, kMostMemory = i64{40} << 20, kKeptShare = 5;

ReadCache& read_cache() {
  static ReadCache cache(kMostMemory / kKeptShare);
  return cache;
}

struct RemotePath {
  std::string scheme;
  /// The parts behind it: "org", "name", "config.json".
  std::vector<std::string> parts;

  std::string text(std::size_t count) const {
    std::string out = scheme + ":/";
    for (std::size_t i = 0; i < count; ++i) out += "/" + parts[i];
    return out;
  }
};

std::optional<RemotePath> parse_remote(std::string_view path) {
  const std::size_t colon = path.find(':');
  if (colon == path.npos || !path.substr(colon + 1).starts_with('/')) return {};
  const std::string_view scheme = path.substr(0, colon);
  if (std::ranges::find(kSchemes, scheme) == kSchemes.end()) return {};
  RemotePath parsed{std::string(scheme), {}};
  std::string_view rest = path.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    if (part.empty() || part == ".") continue;
    if (part != "..")
      parsed.parts.emplace_back(part);
    else if (!parsed.parts.empty())
      parsed.parts.pop_back();
  }
  return parsed;
}

bool is_file_name(std::string_view name) {
  return std::ranges::any_of(kFileEndings, [&](std::string_view ending) { return name.ends_with(ending); });
}

/// The number of parts that name a repository: "org", "name@refs", "pr", "1" for a revision with slashes.
std::size_t repository_parts(const RemotePath& path) {
  const bool is_reference = path.parts.size() >= 4 && path.parts[1].ends_with("@refs");
  return is_reference ? 4 : 2;
}

// ---- one root -----------------------------------------------------------------------------------

class Mount {
 public:
  explicit Mount(std::unique_ptr<RemoteStore> store)
      : store_(std::move(store)), fetcher_(*store_), tree_(store_->root()) {}

  const std::string& root() const { return store_->root(); }
  bool is_used() const { return is_used_; }
  std::string pinned(const std::string& name) {
    {
      const std::lock_guard lock(mutex_);
      make_listed("", *tree_.find(""));
    }
    return store_->pinned_root() + (name.empty() ? "" : "/" + name);
  }

  RemoteNode* find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    is_used_ = true;
    return find_locked(name);
  }

  std::vector<std::string> names_in(const std::string& directory) {
    const std::lock_guard lock(mutex_);
    RemoteNode* const node = find_locked(directory);
    if (node == nullptr) return {};
    make_listed(directory, *node);
    if (directory.empty() && node->must_probe) {
      for (const std::string_view name : store_->known_names()) (void)find_locked(std::string(name));
      if (tree_.names_in("").empty())
        fail(ErrorCode::NotFound, {root(), {}},
             "{}: its server lists no files, and has none of the names of checkpoints; check the address", root());
    }
    return tree_.names_in(directory);
  }

  i64 bytes_of(const std::string& name, RemoteNode& node) {
    const std::lock_guard lock(node.mutex);
    if (node.bytes < 0) (void)fetch_head(name, node);
    return node.bytes;
  }

  /// As preadv().
  ssize_t read(const std::string& name, RemoteNode& node, std::span<const iovec> pieces, i64 offset) {
    i64 wanted = 0;
    for (const iovec& piece : pieces) wanted += static_cast<i64>(piece.iov_len);
    std::shared_ptr<const std::string> known;
    i64 known_at = 0;
    bool reads_on = false;
    const i64 ahead_bytes = std::min(kAheadBytes, read_cache().most_bytes() / 2);
    {
      const std::lock_guard lock(node.mutex);
      known = node.made ? node.made : node.head.lock();
      const bool fits = offset + wanted <= head_bytes_ || node.bytes == 0;
      if (!known && (node.bytes < 0 || (fits && !node.had_head))) known = fetch_head(name, node);
      wanted = std::clamp(node.bytes - offset, i64{0}, wanted);
      // What begins in the first page and is longer than a head is a header.
      if (known && offset < kPage && offset + wanted > std::ssize(*known))
        head_bytes_ = std::max<i64>(head_bytes_,
                                    std::min({kLongestHead, read_cache().most_bytes() / 2, (offset + wanted) / 4 * 5}));
      if (!known || offset + wanted > std::ssize(*known)) {
        if (const auto ahead = node.ahead.lock(); ahead && offset >= node.ahead_at) {
          known = ahead;
          known_at = node.ahead_at;
        }
        // Somebody who reads a file through in small pieces.
        reads_on = wanted < ahead_bytes / 2 && offset == node.read_to;
      }
      node.read_to = offset + wanted;
    }
    const auto ends_in_known = [&] { return known ? known_at + std::ssize(*known) : 0; };
    if (reads_on && offset + wanted > ends_in_known() && (!known || offset >= known_at)) {
      const i64 bytes = std::min(ahead_bytes, node.bytes - offset);
      if (const auto ahead = read_ahead(name, node, offset, bytes)) {
        known = ahead;
        known_at = offset;
      }
    }
    std::vector<iovec> filled, rest;
    i64 at = offset, missing = 0;
    for (const iovec& piece : pieces) {
      const i64 bytes = std::min(static_cast<i64>(piece.iov_len), offset + wanted - at);
      if (bytes <= 0) break;
      auto* const out = static_cast<char*>(piece.iov_base);
      const i64 here = known ? std::clamp(ends_in_known() - at, i64{0}, bytes) : 0;
      if (here > 0) std::memcpy(out, known->data() + (at - known_at), static_cast<std::size_t>(here));
      if (here < bytes) rest.push_back({out + here, static_cast<std::size_t>(bytes - here)});
      filled.push_back({out, static_cast<std::size_t>(bytes)});
      missing += bytes - here;
      at += bytes;
    }
    known.reset();
    if (missing > 0) fetcher_.range(name, node, rest, offset + wanted - missing);
    if (!node.sha256.empty()) pass(name, node, filled, offset);
    return wanted;
  }

 private:
  RemoteNode* find_locked(const std::string& name) {
    if (RemoteNode* const node = tree_.find(name)) return node;
    if (absent_.contains(name)) return nullptr;
    const std::size_t slash = name.rfind('/');
    const std::string above = slash == name.npos ? "" : name.substr(0, slash);
    RemoteNode* const directory = find_locked(above);
    if (directory == nullptr || !directory->is_directory) return nullptr;
    make_listed(above, *directory);
    if (RemoteNode* const node = tree_.find(name)) return node;
    if (!directory->must_probe) return nullptr;
    RemoteNode probed;
    const auto head = fetcher_.head_of(name, probed, head_bytes_, true);
    if (!head) {
      absent_.insert(name);
      return nullptr;
    }
    RemoteNode& node = tree_.add(name);
    node.bytes = probed.bytes;
    node.version = probed.version;
    node.moved_to = probed.moved_to;
    keep_head(node, *head);
    return &node;
  }

  void make_listed(const std::string& name, RemoteNode& directory) {
    if (directory.is_listed || !directory.is_directory) return;
    store_->list(name, tree_, fetcher_);
    directory.is_listed = true;
  }

  struct Follower {
    std::string name;
    RemoteNode* node = nullptr;
  };

  /// The node's mutex is held. Where shards are opened one after another, those that follow are asked for, too, at the
  /// same time: a request takes longer to go there and back than its bytes do.
  std::shared_ptr<const std::string> fetch_head(const std::string& name, RemoteNode& node) {
    const std::vector<Follower> next = followers(name);
    std::shared_ptr<const std::string> own;
    parallel_for(next.size() + 1, static_cast<int>(next.size()) + 1, [&](std::size_t i, int) {
      if (i == 0) {
        own = keep_head(node, *fetcher_.head_of(name, node, head_bytes_, false));
        return;
      }
      const Follower& follower = next[i - 1];
      const std::unique_lock lock(follower.node->mutex, std::try_to_lock);
      if (!lock.owns_lock() || follower.node->had_head) return;
      try {
        keep_head(*follower.node, *fetcher_.head_of(follower.name, *follower.node, head_bytes_, false));
      } catch (const Error&) {
        // Whoever reads that file is told.
      }
    });
    return own;
  }

  /// Returns the shards behind this one in the list, where the last one that was asked for is right before it.
  std::vector<Follower> followers(const std::string& name) {
    constexpr std::string_view kEnding = ".safetensors";
    const auto most = static_cast<std::size_t>(std::min(kHeadsAtOnce, read_cache().most_bytes() / 2 / head_bytes_));
    std::vector<Follower> next;
    if (!name.ends_with(kEnding)) return next;
    const std::lock_guard lock(mutex_);
    const std::size_t slash = name.rfind('/');
    const std::string directory = slash == name.npos ? "" : name.substr(0, slash + 1);
    std::vector<std::string> shards = tree_.names_in(slash == name.npos ? "" : name.substr(0, slash));
    std::erase_if(shards, [&](const std::string& shard) { return !shard.ends_with(kEnding); });
    const auto at = std::ranges::find(shards, name.substr(directory.size()));
    const bool goes_on = at != shards.begin() && at != shards.end() && directory + *std::prev(at) == last_shard_;
    last_shard_ = name;
    if (!goes_on) return next;
    for (auto shard = std::next(at); shard != shards.end() && next.size() + 1 < most; ++shard) {
      last_shard_ = directory + *shard;
      next.push_back({last_shard_, tree_.find(last_shard_)});
    }
    return next;
  }

  std::shared_ptr<const std::string> keep_head(RemoteNode& node, std::string text) {
    auto head = std::make_shared<const std::string>(std::move(text));
    node.had_head = true;
    node.head = head;
    read_cache().keep(head, std::ssize(*head) < node.bytes ? ReadCache::Kind::Part : ReadCache::Kind::WholeFile);
    return head;
  }

  /// Returns nothing where memory has no room for them now.
  std::shared_ptr<const std::string> read_ahead(const std::string& name, RemoteNode& node, i64 offset, i64 count) {
    std::shared_ptr<const std::string> ahead;
    {
      const ReadCache::Room room = read_cache().make_room(count);
      if (!room) return ahead;
      std::string bytes(static_cast<std::size_t>(count), '\0');
      const iovec all{bytes.data(), bytes.size()};
      fetcher_.range(name, node, {&all, 1}, offset);
      ahead = std::make_shared<const std::string>(std::move(bytes));
    }
    const std::lock_guard lock(node.mutex);
    node.ahead = ahead;
    node.ahead_at = offset;
    read_cache().keep(ahead, ReadCache::Kind::Part);
    return ahead;
  }

  /// Goes on with the SHA-256 of a file that passes; the bytes are not copied.
  void pass(const std::string& name, RemoteNode& node, std::span<const iovec> pieces, i64 offset) {
    std::shared_ptr<PassingHash> hash;
    {
      const std::lock_guard lock(node.mutex);
      if (!node.passing) node.passing = std::make_shared<PassingHash>();
      hash = node.passing;
    }
    const std::string sum = hash->take(pieces, offset, node.bytes);
    if (sum.empty() || sum == node.sha256) return;
    const std::string file = store_->name_of(name);
    fail(ErrorCode::SourceChanged, {file, {}},
         "{}: what came is not what the hub lists: its SHA-256 is {}, and that of the list {}; run again", file, sum,
         node.sha256);
  }

  std::unique_ptr<RemoteStore> store_;
  Fetcher fetcher_;
  /// Guards the tree and what is known to be absent.
  std::mutex mutex_;
  RemoteTree tree_;
  std::set<std::string> absent_;
  std::atomic<bool> is_used_{false};
  /// The last of the shards whose heads were asked for.
  std::string last_shard_;
  std::atomic<i64> head_bytes_{kFirstHead};
};

/// Makes the store of a path; a file's is that of its directory. Asks no server.
std::unique_ptr<RemoteStore> make_store(const RemotePath& path) {
  const std::vector<std::string>& parts = path.parts;
  if (path.scheme == "hf") {
    const std::size_t count = repository_parts(path);
    std::string name = parts[1], revision = "main";
    if (const std::size_t at = name.find('@'); at != name.npos) {
      const auto decoded = percent_decode(std::string_view(name).substr(at + 1));
      name.resize(at);
      revision = decoded.value_or("");
      for (std::size_t i = 2; i < count; ++i) revision += "/" + parts[i];
    }
    if (name.empty() || revision.empty())
      fail(ErrorCode::Usage, {path.text(count), {}}, "{}: say hf://ORG/NAME or hf://ORG/NAME@REVISION",
           path.text(count));
    return make_hub_store(path.text(count), parts[0] + "/" + name, revision);
  }
  const std::size_t count = parts.size() - (parts.size() > 1 && is_file_name(parts.back()) ? 1 : 0);
  const std::string root = path.text(count);
  if (path.scheme != "s3") return make_http_store(root);
  std::string prefix;
  for (std::size_t i = 1; i < count; ++i) prefix += (i > 1 ? "/" : "") + parts[i];
  return make_s3_store(root, parts[0], prefix);
}

// ---- the calls ----------------------------------------------------------------------------------

class RemoteCalls final : public SystemCalls {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    const auto remote = parse_remote(path);
    if (!remote) return SystemCalls::open(path, flags, mode);
    if ((flags & O_ACCMODE) != O_RDONLY) return refuse(EROFS);
    if ((flags & (O_DIRECT | O_TMPFILE)) != 0) return refuse(EINVAL);
    const Place place = find(*remote);
    if (place.node == nullptr) return refuse(ENOENT);
    if (place.node->is_directory) return refuse(EISDIR);
    const std::lock_guard lock(mutex_);
    open_.emplace(next_, place);
    return next_++;
  }

  int close(int descriptor) override {
    if (descriptor < kFirstDescriptor) return SystemCalls::close(descriptor);
    const std::lock_guard lock(mutex_);
    return open_.erase(descriptor) == 1 ? 0 : refuse(EBADF);
  }

  ssize_t pread(int descriptor, void* out, std::size_t bytes, i64 offset) override {
    const iovec piece{out, bytes};
    return descriptor < kFirstDescriptor ? SystemCalls::pread(descriptor, out, bytes, offset)
                                         : preadv(descriptor, &piece, 1, offset);
  }

  ssize_t preadv(int descriptor, const iovec* pieces, int count, i64 offset) override {
    if (descriptor < kFirstDescriptor) return SystemCalls::preadv(descriptor, pieces, count, offset);
    const Place place = opened(descriptor);
    if (place.node == nullptr) return refuse(EBADF);
    return place.mount->read(place.name, *place.node, {pieces, static_cast<std::size_t>(count)}, offset);
  }

  int posix_fadvise(int descriptor, i64 offset, i64 bytes, int advice) override {
    return descriptor < kFirstDescriptor ? SystemCalls::posix_fadvise(descriptor, offset, bytes, advice) : 0;
  }

  int fstat(int descriptor, struct stat* info) override {
    if (descriptor < kFirstDescriptor) return SystemCalls::fstat(descriptor, info);
    const Place place = opened(descriptor);
    if (place.node == nullptr) return refuse(EBADF);
    (void)place.mount->bytes_of(place.name, *place.node);
    describe(place, *info);
    return 0;
  }

  int stat(const char* path, struct stat* info) override {
    const auto remote = parse_remote(path);
    if (!remote) return SystemCalls::stat(path, info);
    const Place place = find(*remote);
    if (place.node == nullptr && !place.is_above) return refuse(ENOENT);
    describe(place, *info);
    return 0;
  }

  int lstat(const char* path, struct stat* info) override {
    return is_remote(path) ? stat(path, info) : SystemCalls::lstat(path, info);
  }

  ssize_t readlink(const char* path, char* out, std::size_t bytes) override {
    return is_remote(path) ? refuse(EINVAL) : SystemCalls::readlink(path, out, bytes);
  }

  int realpath(const char* path, std::string& out) override {
    const auto remote = parse_remote(path);
    if (!remote) return SystemCalls::realpath(path, out);
    const Place place = find(*remote);
    // A branch is a link to a commit.
    out = place.node == nullptr ? remote->text(remote->parts.size()) : place.mount->pinned(place.name);
    return 0;
  }

  int list(const char* path, std::vector<std::string>& names) override {
    const auto remote = parse_remote(path);
    if (!remote) return SystemCalls::list(path, names);
    const Place place = find(*remote);
    if (place.node == nullptr) return refuse(place.is_above ? EACCES : ENOENT);
    if (!place.node->is_directory) return refuse(ENOTDIR);
    names = place.mount->names_in(place.name);
    return 0;
  }

  /// Makes the files below a path known.
  void add(const RemotePath& path) {
    auto store = make_store(path);
    const std::lock_guard lock(mutex_);
    // What a server had a while ago may be no longer so; a run that reads it goes on with it.
    if (open_.empty()) std::erase_if(mounts_, [](const auto& mount) { return mount->is_used(); });
    const auto is_root = [&](const auto& mount) { return mount->root() == store->root(); };
    if (std::ranges::none_of(mounts_, is_root)) mounts_.push_back(std::make_shared<Mount>(std::move(store)));
  }

  bool is_used() {
    const std::lock_guard lock(mutex_);
    return !mounts_.empty();
  }

 private:
  struct Place {
    std::shared_ptr<Mount> mount = nullptr;
    std::string name = {};
    /// It lives as long as its mount.
    RemoteNode* node = nullptr;
    /// A directory above a root, of which nothing else is known.
    bool is_above = false;
  };

  static int refuse(int error) {
    errno = error;
    return -1;
  }

  Place opened(int descriptor) {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(descriptor);
    return found == open_.end() ? Place{} : found->second;
  }

  Place find(const RemotePath& path) {
    const std::string text = path.text(path.parts.size());
    Place place;
    {
      const std::lock_guard lock(mutex_);
      const auto is_below = [](std::string_view inner, const std::string& outer) {
        return inner == outer || (inner.starts_with(outer) && inner.substr(outer.size()).starts_with('/'));
      };
      for (const auto& mount : mounts_) {
        if (is_below(text, mount->root())) place.mount = mount;
        place.is_above = place.is_above || is_below(mount->root(), text);
      }
    }
    if (place.mount == nullptr) return place;
    place.is_above = false;
    place.name = text.substr(std::min(place.mount->root().size() + 1, text.size()));
    place.node = place.mount->find(place.name);
    return place;
  }

  static void describe(const Place& place, struct stat& info) {
    info = {};
    info.st_uid = static_cast<uid_t>(-1);
    info.st_nlink = 1;
    info.st_mode = S_IFDIR | 0555;
    if (place.node == nullptr) return;
    const std::string name = place.mount->root() + "/" + place.name;
    std::string identity = name;
    if (!place.node->is_directory) {
      const std::lock_guard lock(place.node->mutex);
      info.st_mode = S_IFREG | 0444;
      info.st_size = std::max<i64>(0, place.node->bytes);
      if (!place.node->version.empty()) identity = place.node->version;
    }
    // A file is known by its content's name: that another commit has the same one changes nothing.
    info.st_ino = hash64(identity);
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Mount>> mounts_;
  std::map<int, Place> open_;
  int next_ = kFirstDescriptor;
};

RemoteCalls& remote_calls() {
  static RemoteCalls calls;
  return calls;
}

}  // namespace

bool is_remote(std::string_view path) { return parse_remote(path).has_value(); }

std::string use_remote(std::string_view path) {
  auto parsed = parse_remote(path);
  const std::string text(path);
  if (!parsed)
    fail(ErrorCode::Usage, {text, {}}, "{}: is no address that is read: hf://, s3://, https:// and http:// are", text);
  std::vector<std::string>& parts = parsed->parts;
  if (parsed->scheme == "https" && parts.size() >= 3 && parts[0] == "huggingface.co") {
    // huggingface.co/org/name/tree/revision, as a browser shows it.
    const bool has_revision = parts.size() >= 5 && (parts[3] == "tree" || parts[3] == "blob" || parts[3] == "resolve");
    if (parts.size() > 3 && !has_revision)
      fail(ErrorCode::Usage, {text, {}}, "{}: is no page of a model's files; say hf://{}/{}", text, parts[1], parts[2]);
    RemotePath hub{"hf", {parts[1], parts[2]}};
    if (has_revision) {
      hub.parts[1] += "@" + parts[4];
      hub.parts.insert(hub.parts.end(), parts.begin() + 5, parts.end());
    }
    parsed = hub;
  }
  if (parts.empty() || (parsed->scheme == "hf" && parsed->parts.size() < repository_parts(*parsed)))
    fail(ErrorCode::Usage, {text, {}},
         "{}: is no whole address; say hf://ORG/NAME, hf://ORG/NAME@REVISION, s3://BUCKET/PREFIX or https://HOST/DIR/",
         text);
  if (parsed->parts.back().ends_with(kIndexEnding)) parsed->parts.pop_back();
  remote_calls().add(*parsed);
  static const SystemCallsScope scope(remote_calls());
  return parsed->text(parsed->parts.size());
}

i64 reserve_remote_memory(i64 memory_bytes) {
  if (!remote_calls().is_used()) return 0;
  const i64 reserved = std::min(kMostMemory, memory_bytes / kMemoryShare);
  read_cache().set_most_bytes(reserved / kKeptShare);
  PassingHash::allow_early(reserved - reserved / kKeptShare);
  return reserved;
}

}  // namespace glu_ckpt
