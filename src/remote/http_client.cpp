#include "remote/http_client.hpp"

#include <algorithm>
#include <cstring>

#include "core/base64.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMostHeadBytes = std::size_t{64} << 10;
constexpr std::size_t kMostHeaders = 256;
constexpr std::size_t kBufferBytes = std::size_t{16} << 10;
constexpr std::size_t kMostIdle = 64;
constexpr int kMostInterim = 8;
/// A connection with no more than this to read is worth its keeping.
constexpr i64 kDrainedBytes = i64{64} << 10;

std::string request_text(const Url& url, const HeaderLines& headers, const Connection& connection) {
  std::string text =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: glu-ckpt/" GLU_CKPT_VERSION
                  "\r\nAccept: */*\r\nAccept-Encoding: identity\r\n",
                  (connection.through_proxy() ? url.origin() : std::string()) + url.target(), url.authority());
  if (!connection.proxy_user().empty())
    text += fmt::format("Proxy-Authorization: Basic {}\r\n", base64_encode(connection.proxy_user()));
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  return text + "\r\n";
}

bool has_word(const std::optional<std::string>& list, std::string_view word) {
  return list && lower_case(*list).find(word) != std::string::npos;
}

}  // namespace

std::optional<std::string> HttpHead::find(std::string_view name) const {
  for (const auto& [found, value] : headers)
    if (found == name) return value;
  return std::nullopt;
}

HttpAnswer::~HttpAnswer() {
  if (!connection_ || !keep_) return;
  try {
    std::vector<std::byte> rest(kBufferBytes);
    // The body of a redirection or an error is a page that nobody reads.
    if (!done_ && (is_chunked_ || left_ > kDrainedBytes)) return;
    while (!done_)
      if (read(rest) == 0) break;
    client_->give(key_, std::move(connection_));
  } catch (const std::exception&) {
    // Then the connection is closed.
  }
}

std::size_t HttpAnswer::read_raw(std::span<std::byte> out) {
  if (out.empty()) return 0;
  if (buffered_ == buffer_.size()) return connection_->receive(out);
  const std::size_t count = std::min(out.size(), buffer_.size() - buffered_);
  std::memcpy(out.data(), buffer_.data() + buffered_, count);
  buffered_ += count;
  return count;
}

std::string HttpAnswer::read_line(std::size_t& left) {
  std::string line;
  for (;;) {
    if (buffered_ == buffer_.size()) {
      buffer_.resize(kBufferBytes);
      buffer_.resize(connection_->receive(buffer_));
      buffered_ = 0;
      if (buffer_.empty()) throw NetworkFailure(key_ + " hung up before its answer was complete");
    }
    const char c = static_cast<char>(buffer_[buffered_++]);
    if (left-- == 0) throw NetworkFailure(fmt::format("{} sent a head of more than {} bytes", key_, kMostHeadBytes));
    if (c == '\n') break;
    line += c;
  }
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

void HttpAnswer::read_head() {
  for (int interim = 0;; ++interim) {
    std::size_t left = kMostHeadBytes;
    const std::string first = read_line(left);
    const auto status = first.starts_with("HTTP/1.") && first.size() >= 12
                            ? parse_number<int>(std::string_view(first).substr(9, 3))
                            : std::nullopt;
    if (!status || interim > kMostInterim) throw NetworkFailure(key_ + " did not answer with HTTP/1.1");
    head_ = {*status, {}};
    for (std::string line = read_line(left); !line.empty(); line = read_line(left)) {
      const std::size_t colon = line.find(':');
      if (colon == line.npos || head_.headers.size() == kMostHeaders)
        throw NetworkFailure(key_ + " sent a head that is none of HTTP/1.1");
      head_.headers.emplace_back(lower_case(std::string_view(line).substr(0, colon)),
                                 trimmed(std::string_view(line).substr(colon + 1)));
    }
    if (*status >= 200) {
      keep_ = !has_word(head_.find("connection"), "close") && first.starts_with("HTTP/1.1");
      break;
    }
  }
  const auto coding = head_.find("content-encoding");
  if (coding && !coding->empty() && lower_case(*coding) != "identity")
    throw NetworkFailure(fmt::format("{} sent an encoded body, which was not asked for", key_));
  if (has_word(head_.find("transfer-encoding"), "chunked")) {
    is_chunked_ = true;
  } else if (head_.status == 204 || head_.status == 304) {
    length_ = 0;
    done_ = true;
  } else if (const auto length = head_.find("content-length")) {
    const auto bytes = parse_number<i64>(*length);
    if (!bytes || *bytes < 0) throw NetworkFailure(key_ + " sent a length that is no number");
    length_ = left_ = *bytes;
    done_ = left_ == 0;
  } else {
    until_close_ = true;
    keep_ = false;
  }
}

/// Reads the line before a chunk, and what follows the last one.
void HttpAnswer::begin_chunk() {
  std::size_t left = kMostHeadBytes;
  if (!first_chunk_) (void)read_line(left);
  first_chunk_ = false;
  const std::string line = read_line(left);
  const auto bytes = parse_number<i64>(trimmed(std::string_view(line).substr(0, line.find(';'))), 16);
  if (!bytes || *bytes < 0) throw NetworkFailure(key_ + " sent a chunk without its length");
  left_ = *bytes;
  if (left_ > 0) return;
  while (!read_line(left).empty()) {
  }
  done_ = true;
}

std::size_t HttpAnswer::read(std::span<std::byte> out) {
  if (is_chunked_ && left_ == 0 && !done_) begin_chunk();
  if (done_ || out.empty()) return 0;
  if (!until_close_) out = out.first(static_cast<std::size_t>(std::min<i64>(left_, static_cast<i64>(out.size()))));
  const std::size_t count = read_raw(out);
  if (until_close_) {
    done_ = count == 0;
    return count;
  }
  if (count == 0) throw NetworkFailure(fmt::format("{} hung up with {} bytes still to come", key_, left_));
  left_ -= static_cast<i64>(count);
  if (left_ == 0 && !is_chunked_) done_ = true;
  return count;
}

std::string HttpAnswer::text(std::size_t most_bytes) {
  std::string text;
  std::vector<std::byte> block(kBufferBytes);
  while (const std::size_t count = read(block)) {
    if (text.size() + count > most_bytes)
      fail(ErrorCode::NotSupported, {}, "{}: sent more than {} bytes where a list of files was asked for", key_,
           most_bytes);
    text.append(reinterpret_cast<const char*>(block.data()), count);
  }
  return text;
}

HttpAnswer HttpClient::get(const Url& url, const HeaderLines& headers) {
  const std::string key = url.origin();
  for (;;) {
    std::unique_ptr<Connection> connection = take(key);
    const bool is_used = connection != nullptr;
    if (!is_used) connection = std::make_unique<Connection>(url, settings_);
    try {
      connection->send(request_text(url, headers, *connection));
      HttpAnswer answer(*this, key, std::move(connection));
      answer.read_head();
      return answer;
    } catch (const NetworkFailure&) {
      // A server closes a connection that waited for long; a new one tells whether it is there.
      if (!is_used) throw;
    }
  }
}

std::unique_ptr<Connection> HttpClient::take(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = idle_.find(key);
  if (found == idle_.end()) return nullptr;
  auto connection = std::move(found->second);
  idle_.erase(found);
  return connection;
}

void HttpClient::give(const std::string& key, std::unique_ptr<Connection> connection) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.emplace(key, std::move(connection));
}

}  // namespace glu_ckpt
