#pragma once
/// HTTP/1.1: one request at a time over each of many connections, which are kept.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "remote/connection.hpp"

namespace glu_ckpt {

/// Lines of a head, in order; names in lower case where a server sent them.
using HeaderLines = std::vector<std::pair<std::string, std::string>>;

struct HttpHead {
  int status = 0;
  HeaderLines headers;

  /// `name` in lower case; nothing where it is not there.
  std::optional<std::string> find(std::string_view name) const;
};

class HttpClient;

/// An answer whose head has come and whose body is still to be read. All of it throws NetworkFailure.
class HttpAnswer {
 public:
  HttpAnswer(HttpAnswer&&) = default;
  HttpAnswer& operator=(HttpAnswer&&) = default;
  /// Gives the connection back where the body was read to its end.
  ~HttpAnswer();

  const HttpHead& head() const { return head_; }
  /// Nothing where the head does not say it.
  std::optional<i64> body_bytes() const { return length_; }
  /// Fills the beginning of `out`, straight from the connection; 0 at the end of the body.
  std::size_t read(std::span<std::byte> out);
  /// The rest of the body. Throws Error NotSupported where it is longer.
  std::string text(std::size_t most_bytes);

 private:
  friend class HttpClient;
  HttpAnswer(HttpClient& client, std::string key, std::unique_ptr<Connection> connection)
      : client_(&client), key_(std::move(key)), connection_(std::move(connection)) {}

  void read_head();
  std::string read_line(std::size_t& left);
  std::size_t read_raw(std::span<std::byte> out);
  void begin_chunk();

  HttpClient* client_;
  std::string key_;
  std::unique_ptr<Connection> connection_;
  HttpHead head_;
  std::optional<i64> length_;
  /// Bytes that came with the head and are not used yet: [buffered_, buffer_.size()).
  std::vector<std::byte> buffer_;
  std::size_t buffered_ = 0;
  /// Bytes of the body, or of its chunk, that are still to come.
  i64 left_ = 0;
  bool is_chunked_ = false;
  bool first_chunk_ = true;
  bool until_close_ = false;
  bool keep_ = false;
  bool done_ = false;
};

class HttpClient {
 public:
  explicit HttpClient(NetworkSettings settings) : settings_(std::move(settings)) {}

  const NetworkSettings& settings() const { return settings_; }
  /// Sends a GET and waits for the head of its answer. Thread safe. Throws NetworkFailure, Error.
  HttpAnswer get(const Url& url, const HeaderLines& headers);

 private:
  friend class HttpAnswer;
  std::unique_ptr<Connection> take(const std::string& key);
  void give(const std::string& key, std::unique_ptr<Connection> connection);

  NetworkSettings settings_;
  std::mutex mutex_;
  /// Connections that wait, by the origin that they lead to.
  std::multimap<std::string, std::unique_ptr<Connection>> idle_;
};

}  // namespace glu_ckpt
