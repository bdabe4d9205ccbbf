#pragma once
/// Ranges of files, with redirections, retries and the words for what goes wrong.

#include <sys/uio.h>

#include <atomic>
#include <initializer_list>
#include <span>
#include <string>

#include "remote/remote_store.hpp"

namespace glu_ckpt {

class Fetcher {
 public:
  explicit Fetcher(const RemoteStore& store) : store_(store), client_(NetworkSettings::from_environment()) {}

  struct Document {
    HttpHead head;
    std::string text;
  };
  /// A whole document. Statuses other than 200 and those in `also` are errors.
  Document document(const Url& url, const std::string& name, std::initializer_list<int> also = {});

  /// The first bytes of a file, at most that many; what the answer says of the file goes into `node`, whose mutex is
  /// held. Nothing where there is no such file and `may_be_missing`.
  std::optional<std::string> head_of(const std::string& file, RemoteNode& node, i64 most_bytes, bool may_be_missing);

  /// Fills the pieces with the file's bytes from `offset` on. It has as many, and its size is known. Thread safe.
  void range(const std::string& file, RemoteNode& node, std::span<const iovec> pieces, i64 offset);

 private:
  struct Sent {
    HttpAnswer answer;
    Url url;
  };

  class Pieces;

  template <typename Check>
  Sent send(const std::string& name, Url url, const HeaderLines& lines, const Check& check);
  template <typename Attempt>
  void with_retries(const std::string& name, const Attempt& attempt);
  void check_status(const std::string& name, const Sent& sent) const;
  void check_version(const std::string& name, const RemoteNode& node, i64 bytes, const HttpHead& head) const;
  void continue_range(const std::string& file, RemoteNode& node, Pieces& pieces);

  const RemoteStore& store_;
  HttpClient client_;
  /// Some server answered, be it with an error.
  std::atomic<bool> has_answered_ = false;
};

}  // namespace glu_ckpt
