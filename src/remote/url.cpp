#include "remote/url.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/parse_number.hpp"

namespace glu_ckpt {
namespace {

constexpr int kHttpPort = 80, kHttpsPort = 443, kMostPort = 65535;

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

/// Fills host and port from "host", "host:port" or "[address]:port".
bool parse_authority(std::string_view text, Url& url) {
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == text.npos) return false;
    url.host = lower_case(text.substr(1, end - 1));
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest.front() != ':') return false;
    port = rest.empty() ? rest : rest.substr(1);
  } else {
    const std::size_t colon = text.rfind(':');
    url.host = lower_case(text.substr(0, colon));
    if (colon != text.npos) port = text.substr(colon + 1);
    if (!std::ranges::all_of(url.host, is_unreserved)) return false;
  }
  url.port = url.is_tls ? kHttpsPort : kHttpPort;
  if (!port.empty()) {
    const auto number = parse_number<int>(port);
    if (!number || *number < 1 || *number > kMostPort) return false;
    url.port = *number;
  }
  return !url.host.empty();
}

}  // namespace

std::string Url::authority() const {
  const std::string name = host.find(':') == host.npos ? host : fmt::format("[{}]", host);
  return port == (is_tls ? kHttpsPort : kHttpPort) ? name : fmt::format("{}:{}", name, port);
}

std::string Url::origin() const { return fmt::format("{}://{}", is_tls ? "https" : "http", authority()); }

std::optional<Url> parse_url(std::string_view text) {
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; })) return {};
  Url url;
  const std::size_t colon = text.find("://");
  const std::string scheme = lower_case(text.substr(0, colon));
  if (colon == text.npos || (scheme != "http" && scheme != "https")) return {};
  url.is_tls = scheme == "https";
  text.remove_prefix(colon + 3);
  text = text.substr(0, text.find('#'));
  const std::size_t end = std::min(text.find_first_of("/?"), text.size());
  std::string_view authority = text.substr(0, end);
  if (const std::size_t at = authority.rfind('@'); at != authority.npos) {
    const auto user = percent_decode(authority.substr(0, at));
    if (!user) return {};
    url.user = *user;
    authority.remove_prefix(at + 1);
  }
  if (!parse_authority(authority, url)) return {};
  text.remove_prefix(end);
  const std::size_t query = std::min(text.find('?'), text.size());
  url.path = text.starts_with('/') ? std::string(text.substr(0, query)) : "/";
  url.query = std::string(text.substr(query));
  return url;
}

std::optional<Url> follow_location(const Url& from, std::string_view location) {
  if (location.find("://") < location.find_first_of("/?#")) return parse_url(location);
  if (location.starts_with("//"))
    return parse_url(std::string(from.is_tls ? "https:" : "http:") + std::string(location));
  if (location.empty()) return {};
  const std::string base = from.origin();
  if (location.starts_with('/')) return parse_url(base + std::string(location));
  if (location.starts_with('?')) return parse_url(base + from.path + std::string(location));
  std::string path = from.path.substr(0, from.path.rfind('/') + 1) + std::string(location);
  for (std::size_t at = path.find("/../"); at != path.npos; at = path.find("/../")) {
    const std::size_t above = at == 0 ? 0 : path.rfind('/', at - 1);
    path.erase(above, at + 3 - above);
  }
  return parse_url(base + path);
}

std::string percent_encode(std::string_view text, std::string_view kept) {
  std::string out;
  for (const char c : text)
    if (is_unreserved(c) || kept.find(c) != kept.npos)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return out;
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const auto value = i + 2 < text.size() ? parse_number<unsigned>(text.substr(i + 1, 2), 16) : std::nullopt;
    if (!value) return {};
    out += static_cast<char>(*value);
    i += 2;
  }
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

}  // namespace glu_ckpt
