/// Prefixes in buckets of S3 and of what speaks as it does.

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "remote/fetcher.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kMostConfigBytes = i64{1} << 20;
constexpr int kMostPages = 1000;
/// The SHA-256 of no bytes: a GET has no body.
constexpr std::string_view kEmptySha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// ---- credentials --------------------------------------------------------------------------------

struct S3Settings {
  std::string key, secret, session, region, endpoint;
};

/// Fills what is empty from a section of an INI file as the AWS tools write it.
void read_profile(const std::filesystem::path& file, const std::string& section, S3Settings& settings) {
  if (!is_file(file)) return;
  const std::string text = read_small_file(file, kMostConfigBytes, ErrorCode::NotSupported);
  bool is_in = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    line = trimmed(line);
    if (line.starts_with('[') && line.ends_with(']')) {
      is_in = trimmed(line.substr(1, line.size() - 2)) == section;
      continue;
    }
    const std::size_t equals = line.find('=');
    if (!is_in || equals == line.npos) continue;
    const std::string name = lower_case(trimmed(line.substr(0, equals)));
    const auto take = [&](std::string_view known, std::string& to) {
      if (name == known && to.empty()) to = trimmed(line.substr(equals + 1));
    };
    take("aws_access_key_id", settings.key);
    take("aws_secret_access_key", settings.secret);
    take("aws_session_token", settings.session);
    take("region", settings.region);
    take("endpoint_url", settings.endpoint);
  }
}

std::string first_set(std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (std::string value = environment(name); !value.empty()) return value;
  return {};
}

/// Finds them as the AWS tools do, but for what asks another service: IMDS, SSO, roles.
S3Settings find_settings() {
  S3Settings settings;
  settings.key = environment("AWS_ACCESS_KEY_ID");
  settings.secret = environment("AWS_SECRET_ACCESS_KEY");
  if (!settings.key.empty()) settings.session = environment("AWS_SESSION_TOKEN");
  settings.region = first_set({"AWS_REGION", "AWS_DEFAULT_REGION"});
  settings.endpoint = first_set({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  const std::string profile = first_set({"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  const std::filesystem::path home = std::filesystem::path(environment("HOME")) / ".aws";
  std::filesystem::path credentials = environment("AWS_SHARED_CREDENTIALS_FILE"),
                        config = environment("AWS_CONFIG_FILE");
  if (credentials.empty()) credentials = home / "credentials";
  if (config.empty()) config = home / "config";
  const std::string name = profile.empty() ? "default" : profile;
  // A key of one place and a secret of another would be nobody's.
  S3Settings from_files;
  read_profile(credentials, name, from_files);
  read_profile(config, name == "default" ? name : "profile " + name, from_files);
  if (settings.key.empty() || settings.secret.empty()) {
    settings.key = from_files.key;
    settings.secret = from_files.secret;
    settings.session = from_files.session;
  }
  if (settings.region.empty()) settings.region = from_files.region.empty() ? "us-east-1" : from_files.region;
  if (settings.endpoint.empty()) settings.endpoint = from_files.endpoint;
  return settings;
}

// ---- signature, version 4 -----------------------------------------------------------------------

std::string hexadecimal(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::string sha256(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
    fail(ErrorCode::NoMemory, {}, "SHA-256 cannot be computed");
  return {reinterpret_cast<const char*>(digest.data()), size};
}

std::string hmac(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), digest.data(), &size) == nullptr)
    fail(ErrorCode::NoMemory, {}, "HMAC cannot be computed");
  return {reinterpret_cast<const char*>(digest.data()), size};
}

HeaderLines sign(const Url& url, const S3Settings& settings, std::time_t now) {
  struct tm utc {};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  ::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  const std::string time = text.data(), day = time.substr(0, 8);
  std::string headers =
      fmt::format("host:{}\nx-amz-content-sha256:{}\nx-amz-date:{}\n", url.authority(), kEmptySha256, time);
  std::string names = "host;x-amz-content-sha256;x-amz-date";
  HeaderLines lines = {{"x-amz-content-sha256", std::string(kEmptySha256)}, {"x-amz-date", time}};
  if (!settings.session.empty()) {
    headers += fmt::format("x-amz-security-token:{}\n", settings.session);
    names += ";x-amz-security-token";
    lines.emplace_back("x-amz-security-token", settings.session);
  }
  // The queries of this file are in order already.
  const std::string query = url.query.empty() ? "" : url.query.substr(1);
  const std::string request = fmt::format("GET\n{}\n{}\n{}\n{}\n{}", url.path, query, headers, names, kEmptySha256);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, settings.region);
  const std::string to_sign = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, hexadecimal(sha256(request)));
  const std::string key = hmac(hmac(hmac(hmac("AWS4" + settings.secret, day), settings.region), "s3"), "aws4_request");
  lines.emplace_back("Authorization", fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                                                  settings.key, scope, names, hexadecimal(hmac(key, to_sign))));
  return lines;
}

// ---- lists --------------------------------------------------------------------------------------

/// Returns the text between <name> and </name>, from `at` on, which moves behind it; nothing where there is none.
std::optional<std::string_view> element(std::string_view xml, std::string_view name, std::size_t& at) {
  const std::string open = fmt::format("<{}>", name), close = fmt::format("</{}>", name);
  const std::size_t begin = xml.find(open, at);
  if (begin == xml.npos) return {};
  const std::size_t end = xml.find(close, begin + open.size());
  if (end == xml.npos) return {};
  at = end + close.size();
  return xml.substr(begin + open.size(), end - begin - open.size());
}

std::optional<std::string_view> element(std::string_view xml, std::string_view name) {
  std::size_t at = 0;
  return element(xml, name, at);
}

std::string plain_text(std::string_view xml) {
  constexpr std::array<std::pair<std::string_view, char>, 6> kEntities = {
      {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&#34;", '"'}}};
  std::string text;
  while (!xml.empty()) {
    const auto entity =
        std::ranges::find_if(kEntities, [&](const auto& known) { return xml.starts_with(known.first); });
    text += entity == kEntities.end() ? xml.front() : entity->second;
    xml.remove_prefix(entity == kEntities.end() ? 1 : entity->first.size());
  }
  return text;
}

class S3Store final : public RemoteStore {
 public:
  S3Store(const std::string& root, std::string bucket, const std::string& prefix)
      : RemoteStore(root),
        bucket_(std::move(bucket)),
        prefix_(prefix.empty() ? "" : prefix + "/"),
        settings_(find_settings()) {
    for (const std::string* const line : {&settings_.key, &settings_.session, &settings_.region})
      if (line->find_first_of("\r\n") != std::string::npos)
        fail(ErrorCode::Usage, {}, "the credentials for S3 have several lines");
    if (settings_.endpoint.empty()) {
      const bool is_name = bucket_.find('.') == std::string::npos;
      const std::string host = fmt::format("s3.{}.amazonaws.com", settings_.region);
      bucket_url_ = *parse_url("https://" + (is_name ? bucket_ + "." : std::string()) + host);
      bucket_url_.path = is_name ? "" : "/" + bucket_;
      return;
    }
    const auto url = parse_url(settings_.endpoint);
    if (!url || !url->user.empty() || !url->query.empty())
      fail(ErrorCode::Usage, {}, "AWS_ENDPOINT_URL is no address such as https://host:9000");
    bucket_url_ = *url;
    while (bucket_url_.path.ends_with('/')) bucket_url_.path.pop_back();
    bucket_url_.path += "/" + percent_encode(bucket_);
  }

  void list(const std::string& /*directory*/, RemoteTree& tree, Fetcher& fetcher) const override {
    std::string next;
    std::size_t found = 0;
    for (int page = 0; page < kMostPages; ++page) {
      Url url = bucket_url_;
      if (url.path.empty()) url.path = "/";
      url.query = next.empty() ? "?" : fmt::format("?continuation-token={}&", percent_encode(next));
      url.query += "list-type=2&prefix=" + percent_encode(prefix_);
      const Fetcher::Document answer = fetcher.document(url, root());
      const auto result = element_of_list(answer.text);
      std::size_t at = 0;
      while (const auto entry = element(*result, "Contents", at)) found += add_entry(*entry, tree) ? 1 : 0;
      const auto token = element(*result, "NextContinuationToken");
      if (element(*result, "IsTruncated").value_or("false") != "true" || !token) break;
      next = plain_text(*token);
    }
    if (found == 0)
      fail(ErrorCode::NotFound, {root(), {}}, "{}: nothing in bucket '{}' begins with '{}'; check the prefix", root(),
           bucket_, prefix_);
    tree.set_all_listed();
  }

  Url url_of(const std::string& file) const override {
    Url url = bucket_url_;
    url.path += "/" + percent_encode(prefix_ + file, "/");
    return url;
  }

  HeaderLines credentials(const Url& url) const override {
    if (settings_.key.empty() || url.origin() != bucket_url_.origin()) return {};
    return sign(url, settings_, ::time(nullptr));
  }

  std::string advice(const HttpHead& head) const override {
    if (const auto region = head.find("x-amz-bucket-region"); region && *region != settings_.region)
      return fmt::format("the bucket is in region {}, and {} was asked; set AWS_REGION={}", *region, settings_.region,
                         *region);
    if (head.status == 404) return "check the name of the bucket and the prefix";
    if (head.status != 403 && head.status != 401) return {};
    return settings_.key.empty()
               ? "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE of "
                 "~/.aws/credentials"
               : "check the credentials, the clock of this machine, and that they may list the bucket and get its "
                 "objects";
  }

 private:
  std::optional<std::string_view> element_of_list(const std::string& text) const {
    // The name is followed by its namespace.
    const std::size_t begin = text.find("<ListBucketResult");
    if (begin == text.npos || text.find("</ListBucketResult>", begin) == text.npos)
      fail(ErrorCode::NotSupported, {root(), {}}, "{}: the answer of {} is no list of S3", root(),
           bucket_url_.authority());
    return std::string_view(text).substr(begin);
  }

  bool add_entry(std::string_view entry, RemoteTree& tree) const {
    const auto key = element(entry, "Key"), size = element(entry, "Size"), etag = element(entry, "ETag");
    const auto bytes = size ? parse_number<i64>(*size) : std::nullopt;
    if (!key || !bytes || *bytes < 0)
      fail(ErrorCode::NotSupported, {root(), {}}, "{}: {} lists an object without its key or size", root(),
           bucket_url_.authority());
    const std::string name = plain_text(*key);
    // A key that ends in "/" is a directory as browsers make them.
    if (!name.starts_with(prefix_) || name.size() == prefix_.size() || name.ends_with('/')) return false;
    RemoteNode& node = tree.add(name.substr(prefix_.size()));
    node.bytes = *bytes;
    if (etag) node.version = bare_etag(plain_text(*etag));
    return true;
  }

  std::string bucket_;
  /// Empty, or with a "/" at its end.
  std::string prefix_;
  S3Settings settings_;
  Url bucket_url_;
};

}  // namespace

std::unique_ptr<RemoteStore> make_s3_store(const std::string& root, const std::string& bucket,
                                           const std::string& prefix) {
  return std::make_unique<S3Store>(root, bucket, prefix);
}

}  // namespace glu_ckpt
