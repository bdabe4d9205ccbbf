#pragma once
/// What is known of the files at an address, and who knows it.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "remote/http_client.hpp"

namespace glu_ckpt {

class PassingHash;

/// A file or directory below the address that the user gave.
struct RemoteNode {
  bool is_directory = false;
  /// Of a directory: all that is in it is in the tree.
  bool is_listed = false;
  /// Of a directory whose server does not list: names are asked for one by one.
  bool must_probe = false;
  /// Negative as long as nobody said it.
  i64 bytes = -1;
  /// The server's word for this content: an ETag, a blob's ID. Empty where there is none.
  std::string version;
  /// In hexadecimal, as the hub says it of large files.
  std::string sha256;
  /// The address that a redirection led to.
  std::optional<Url> moved_to;
  /// The first bytes of the file, while they are kept.
  std::weak_ptr<const std::string> head;
  bool had_head = false;
  /// Bytes in the middle that were read ahead, where they begin, and the end of the last small read.
  std::weak_ptr<const std::string> ahead;
  i64 ahead_at = 0;
  i64 read_to = -1;
  /// The whole file, where it is made here of what the server lists.
  std::shared_ptr<const std::string> made;
  /// Computes the SHA-256 while bytes pass; null where the file did not pass in order, or is proved.
  std::shared_ptr<PassingHash> passing;
  /// Held by whoever changes what is above, once the node is in a tree.
  std::mutex mutex;
};

/// Names are relative and have "/" between their parts; "" is the root. Directories above a name are there with it.
class RemoteTree {
 public:
  explicit RemoteTree(std::string root) : root_(std::move(root)) { nodes_[""].is_directory = true; }

  RemoteNode* find(const std::string& name);
  /// Throws NotSupported for a name that leads out of the tree, and for too many of them.
  RemoteNode& add(const std::string& name, bool is_directory = false);
  void set_all_listed();
  /// The names that are in a directory, without it.
  std::vector<std::string> names_in(const std::string& directory) const;

 private:
  /// For messages.
  std::string root_;
  std::map<std::string, RemoteNode> nodes_;
};

class Fetcher;

/// One root: a directory of a web server, a repository of the hub, a prefix in a bucket.
class RemoteStore {
 public:
  /// `root` as the user wrote it, without a "/" at its end; for messages.
  explicit RemoteStore(std::string root) : root_(std::move(root)) {}
  RemoteStore(const RemoteStore&) = delete;
  RemoteStore& operator=(const RemoteStore&) = delete;
  virtual ~RemoteStore() = default;

  const std::string& root() const { return root_; }
  /// The root by a name whose content never changes, where the server has such names.
  virtual std::string pinned_root() const { return root_; }
  std::string name_of(const std::string& file) const { return file.empty() ? root_ : root_ + "/" + file; }
  /// The names to ask for in a root that must be probed.
  virtual std::span<const std::string_view> known_names() const { return {}; }
  /// Adds what is in a directory, or sets must_probe. Throws Error.
  virtual void list(const std::string& directory, RemoteTree& tree, Fetcher& fetcher) const = 0;
  virtual Url url_of(const std::string& file) const = 0;
  /// The lines that prove to `url` who asks; none for an address that is not the store's own.
  virtual HeaderLines credentials(const Url& url) const = 0;
  /// A line of advice for an answer that another try does not mend; "" where there is nothing special.
  virtual std::string advice(const HttpHead& head) const = 0;
  /// The server's word for the content that an answer is about; "" where check_answer() sees to that.
  virtual std::string version_in(const HttpHead& head) const;
  /// Throws SourceChanged where an answer, on the way or the last, says that it is about another content.
  virtual void check_answer(const std::string& /*file*/, const RemoteNode& /*node*/, const HttpHead& /*head*/) const {}

 private:
  std::string root_;
};

std::unique_ptr<RemoteStore> make_http_store(const std::string& root);
std::unique_ptr<RemoteStore> make_hub_store(const std::string& root, const std::string& repository,
                                            const std::string& revision);
std::unique_ptr<RemoteStore> make_s3_store(const std::string& root, const std::string& bucket,
                                           const std::string& prefix);

/// An ETag without its quotes.
std::string bare_etag(std::string_view text);

}  // namespace glu_ckpt
