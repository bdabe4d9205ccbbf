#include "remote/fetcher.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>

#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "core/readable.hpp"
#include "remote/stoppable_wait.hpp"

namespace glu_ckpt {
namespace {

constexpr int kMostRedirections = 10;
constexpr std::size_t kMostDocument = std::size_t{64} << 20;
constexpr i64 kFirstDelayMs = 250, kLongestDelayMs = 30'000;
/// A server that never answered may be none at all.
constexpr int kRetriesOfNobody = 2;
/// A server that asks for more patience than this is told of.
constexpr i64 kMostPatienceMs = 300'000;
/// An attempt that brought as much was none in vain.
constexpr i64 kProgressBytes = i64{64} << 10;

bool is_redirection(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool is_passing(int status) {
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

/// Retry-After: seconds, or a date.
i64 retry_after_ms(const HttpHead& head) {
  const std::string text = head.find("retry-after").value_or("");
  if (const auto seconds = parse_number<i64>(text); seconds && *seconds >= 0)
    return std::min(*seconds, kMostPatienceMs) * 1000;
  struct tm date {};
  if (text.empty() || ::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date) == nullptr) return -1;
  return std::max<i64>(0, i64{::timegm(&date)} - i64{::time(nullptr)}) * 1000;
}

i64 delay_ms(int failed) {
  thread_local std::minstd_rand random(std::random_device{}());
  const i64 most = std::min(kLongestDelayMs, kFirstDelayMs << std::min(failed - 1, 10));
  return std::uniform_int_distribution<i64>(most / 2, most)(random);
}

/// "bytes 0-99/1000". `bytes` of the whole file is negative for "*".
struct ContentRange {
  i64 first = 0;
  i64 last = -1;
  i64 bytes = -1;
};

std::optional<ContentRange> content_range(const HttpHead& head) {
  const std::string text = head.find("content-range").value_or("");
  std::string_view rest = text;
  if (!lower_case(rest).starts_with("bytes ")) return {};
  rest = trimmed(rest.substr(6));
  const std::size_t slash = rest.find('/');
  if (slash == rest.npos) return {};
  const std::string_view span = rest.substr(0, slash), all = rest.substr(slash + 1);
  ContentRange range;
  if (all != "*") {
    const auto bytes = parse_number<i64>(all);
    if (!bytes || *bytes < 0) return {};
    range.bytes = *bytes;
  }
  if (span == "*") return range;
  const std::size_t dash = span.find('-');
  if (dash == span.npos) return {};
  const auto first = parse_number<i64>(span.substr(0, dash)), last = parse_number<i64>(span.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first) return {};
  range.first = *first;
  range.last = *last;
  return range;
}

HeaderLines range_line(i64 first, i64 end) { return {{"Range", fmt::format("bytes={}-{}", first, end - 1)}}; }

}  // namespace

/// Places in memory that the bytes of a file go to, one after another.
class Fetcher::Pieces {
 public:
  Pieces(std::span<const iovec> pieces, i64 offset) : pieces_(pieces), at_(offset), end_(offset) {
    for (const iovec& piece : pieces) end_ += static_cast<i64>(piece.iov_len);
    skip(0);
  }

  /// The position in the file of the next byte.
  i64 at() const { return at_; }
  i64 end() const { return end_; }
  /// Where it goes, with room for no more than `most`.
  std::span<std::byte> next(i64 most) const {
    const iovec& piece = pieces_.front();
    const auto room = static_cast<i64>(piece.iov_len - used_);
    return {static_cast<std::byte*>(piece.iov_base) + used_, static_cast<std::size_t>(std::min(room, most))};
  }
  void skip(std::size_t bytes) {
    at_ += static_cast<i64>(bytes);
    used_ += bytes;
    while (!pieces_.empty() && used_ >= pieces_.front().iov_len) {
      used_ -= pieces_.front().iov_len;
      pieces_ = pieces_.subspan(1);
    }
  }

 private:
  std::span<const iovec> pieces_;
  /// Bytes of the first piece that are filled.
  std::size_t used_ = 0;
  i64 at_;
  i64 end_;
};

namespace {

[[noreturn]] void fail_without_ranges(const std::string& name) {
  fail(ErrorCode::NotSupported, {name, {}},
       "{}: its server sends whole files only, where a part of one is asked for (Range); copy the checkpoint to this "
       "machine, or to a server with ranges",
       name);
}

[[noreturn]] void fail_changed(const std::string& name, const std::string& how) {
  fail(ErrorCode::SourceChanged, {name, {}}, "{}: changed on its server while it was read: {}; run again", name, how);
}

}  // namespace

template <typename Attempt>
void Fetcher::with_retries(const std::string& name, const Attempt& attempt) {
  for (int failed = 0;;) {
    i64 done = 0;
    try {
      if (attempt(done)) return;
      failed = 0;
      continue;
    } catch (const NetworkFailure& failure) {
      if (done >= kProgressBytes) failed = 0;
      const i64 asked = failure.retry_after_ms();
      const int usual = client_.settings().retries;
      const int retries = has_answered_ ? usual : std::min(usual, kRetriesOfNobody);
      if (++failed > retries || asked > kMostPatienceMs)
        fail(ErrorCode::Network, {name, {}}, "{}: {}{}; {}", name, failure.what(),
             asked > kMostPatienceMs ? fmt::format(", and asks to wait for {} s", asked / 1000)
             : failed > 1            ? fmt::format(", after {} tries", failed)
                                     : std::string(),
             has_answered_ ? "try again later: `convert --resume` fetches only what is still missing"
                           : "check the address and the connection");
      wait_stoppably(asked >= 0 ? asked : delay_ms(failed));
    }
  }
}

template <typename Check>
Fetcher::Sent Fetcher::send(const std::string& name, Url url, const HeaderLines& lines, const Check& check) {
  for (int hop = 0; hop <= kMostRedirections; ++hop) {
    HeaderLines all = lines;
    for (auto& line : store_.credentials(url)) all.push_back(std::move(line));
    HttpAnswer answer = client_.get(url, all);
    has_answered_ = true;
    // Answers on the way count, too: the hub says there what it redirects to.
    check(answer.head());
    const auto location = answer.head().find("location");
    if (!is_redirection(answer.head().status) || !location) return {std::move(answer), std::move(url)};
    const auto next = follow_location(url, *location);
    if (!next)
      fail(ErrorCode::Network, {name, {}}, "{}: {} leads to an address that is neither http nor https", name,
           url.authority());
    url = *next;
  }
  fail(ErrorCode::Network, {name, {}}, "{}: was redirected more than {} times; check the address", name,
       kMostRedirections);
}

void Fetcher::check_status(const std::string& name, const Sent& sent) const {
  const HttpHead& head = sent.answer.head();
  const int status = head.status;
  if (status == 200 || status == 206) return;
  const std::string server = sent.url.authority();
  if (is_passing(status)) throw NetworkFailure(fmt::format("{} answered {}", server, status), retry_after_ms(head));
  std::string advice = store_.advice(head);
  if (!advice.empty()) advice = "; " + advice;
  if (status == 401 || status == 403 || status == 407)
    fail(ErrorCode::AccessDenied, {name, {}}, "{}: {} does not give it to you ({}){}", name, server, status, advice);
  if (status == 404 || status == 410)
    fail(ErrorCode::NotFound, {name, {}}, "{}: {} does not have it ({}){}", name, server, status, advice);
  fail(ErrorCode::Network, {name, {}}, "{}: {} answered {}, of which nothing can be made{}", name, server, status,
       advice);
}

void Fetcher::check_version(const std::string& name, const RemoteNode& node, i64 bytes, const HttpHead& head) const {
  if (node.bytes >= 0 && bytes >= 0 && bytes != node.bytes)
    fail_changed(name, fmt::format("it has {} bytes, and had {}", bytes, node.bytes));
  const std::string version = store_.version_in(head);
  if (!version.empty() && !node.version.empty() && version != node.version)
    fail_changed(name, fmt::format("it is {}, and was {}", version, node.version));
}

Fetcher::Document Fetcher::document(const Url& url, const std::string& name, std::initializer_list<int> also) {
  std::optional<Document> document;
  with_retries(name, [&](i64&) {
    Sent sent = send(name, url, {}, [](const HttpHead&) {});
    const int status = sent.answer.head().status;
    if (std::ranges::find(also, status) == also.end()) check_status(name, sent);
    document = Document{sent.answer.head(), sent.answer.text(kMostDocument)};
    return true;
  });
  return std::move(*document);
}

std::optional<std::string> Fetcher::head_of(const std::string& file, RemoteNode& node, i64 most_bytes,
                                            bool may_be_missing) {
  const std::string name = store_.name_of(file);
  std::optional<std::string> text;
  with_retries(name, [&](i64&) {
    Sent sent = send(name, store_.url_of(file), range_line(0, most_bytes),
                     [&](const HttpHead& passed) { store_.check_answer(file, node, passed); });
    const HttpHead& head = sent.answer.head();
    if (may_be_missing && (head.status == 404 || head.status == 403 || head.status == 410)) return true;
    const auto range = content_range(head);
    i64 bytes = -1, wanted = -1;
    if (head.status == 416 && range && range->bytes == 0) {
      bytes = wanted = 0;
    } else {
      check_status(name, sent);
      if (head.status == 206) {
        if (!range || range->first != 0 || range->bytes < 0 || range->last + 1 != std::min(most_bytes, range->bytes))
          throw NetworkFailure(fmt::format("{} sent another range than the one asked for", sent.url.authority()));
        bytes = range->bytes;
        wanted = range->last + 1;
      } else {
        bytes = wanted = sent.answer.body_bytes().value_or(-1);
        if (bytes > most_bytes) fail_without_ranges(name);
      }
    }
    check_version(name, node, bytes, head);
    std::string body(static_cast<std::size_t>(wanted < 0 ? most_bytes + 1 : wanted), '\0');
    std::size_t done = 0;
    if (head.status != 416)
      while (done < body.size()) {
        const std::size_t count = sent.answer.read(std::as_writable_bytes(std::span(body)).subspan(done));
        if (count == 0) break;
        done += count;
      }
    if (wanted >= 0 && done != body.size())
      throw NetworkFailure(fmt::format("{} sent {} bytes of {}", sent.url.authority(), done, body.size()));
    if (static_cast<i64>(done) > most_bytes) fail_without_ranges(name);
    std::byte more{};
    if (head.status != 416 && sent.answer.read({&more, 1}) != 0)
      throw NetworkFailure(fmt::format("{} sent more bytes than it announced", sent.url.authority()));
    body.resize(done);
    // What is known stays as it is: others may be reading by it.
    if (node.bytes < 0) node.bytes = bytes >= 0 ? bytes : static_cast<i64>(done);
    if (const std::string version = store_.version_in(head); node.version.empty() && !version.empty())
      node.version = version;
    node.moved_to = sent.url;
    text = std::move(body);
    return true;
  });
  return text;
}

void Fetcher::continue_range(const std::string& file, RemoteNode& node, Pieces& pieces) {
  const std::string name = store_.name_of(file);
  const auto check = [&](const HttpHead& passed) { store_.check_answer(file, node, passed); };
  const i64 first = pieces.at();
  std::optional<Url> moved_to;
  {
    const std::lock_guard lock(node.mutex);
    moved_to = node.moved_to;
  }
  const HeaderLines lines = range_line(first, pieces.end());
  Sent sent = send(name, moved_to.value_or(store_.url_of(file)), lines, check);
  const int refused = sent.answer.head().status;
  // The signature of an address ends some time.
  if (moved_to && refused >= 400 && refused < 500 && refused != 408 && refused != 429 && refused != 416)
    sent = send(name, store_.url_of(file), lines, check);
  const HttpHead& head = sent.answer.head();
  if (head.status == 416) fail_changed(name, fmt::format("it no longer has the {} bytes that it had", node.bytes));
  check_status(name, sent);
  if (head.status == 200 && (first != 0 || sent.answer.body_bytes() != pieces.end())) fail_without_ranges(name);
  i64 last = pieces.end() - 1;
  if (head.status == 206) {
    const auto range = content_range(head);
    if (!range || range->first != first || range->last > last)
      throw NetworkFailure(fmt::format("{} sent another range than the one asked for", sent.url.authority()));
    last = range->last;
    check_version(name, node, range->bytes, head);
  }
  if (const auto body = sent.answer.body_bytes(); body && *body != last - first + 1)
    throw NetworkFailure(
        fmt::format("{} announced {} bytes for a range of {}", sent.url.authority(), *body, last - first + 1));
  {
    const std::lock_guard lock(node.mutex);
    node.moved_to = sent.url;
  }
  while (pieces.at() <= last) {
    const std::size_t count = sent.answer.read(pieces.next(last + 1 - pieces.at()));
    if (count == 0)
      throw NetworkFailure(
          fmt::format("{} hung up with {} bytes still to come", sent.url.authority(), last + 1 - pieces.at()));
    pieces.skip(count);
  }
  std::byte more{};
  if (sent.answer.read({&more, 1}) != 0)
    throw NetworkFailure(fmt::format("{} sent more bytes than it announced", sent.url.authority()));
}

void Fetcher::range(const std::string& file, RemoteNode& node, std::span<const iovec> to, i64 offset) {
  Pieces pieces(to, offset);
  with_retries(store_.name_of(file), [&](i64& done) {
    const i64 before = pieces.at();
    try {
      continue_range(file, node, pieces);
    } catch (const NetworkFailure&) {
      done = pieces.at() - before;
      throw;
    }
    return pieces.at() == pieces.end();
  });
}

}  // namespace glu_ckpt
