#pragma once
/// Addresses of http and https.

#include <optional>
#include <string>
#include <string_view>

namespace glu_ckpt {

/// An address, percent-encoded as it goes over the wire.
struct Url {
  bool is_tls = false;
  /// Without the brackets of an IPv6 address.
  std::string host;
  int port = 0;
  /// "user:password", decoded; only a proxy may have them.
  std::string user;
  /// Begins with "/".
  std::string path = "/";
  /// With its "?", or empty.
  std::string query;

  std::string target() const { return path + query; }
  /// "host", or "host:port" where the port is not the scheme's own.
  std::string authority() const;
  /// "https://host:port".
  std::string origin() const;
  /// The address without its query, which may be a signature.
  std::string shown() const { return origin() + path; }
};

/// Returns nothing for what is no http or https address, and for one with spaces or control characters.
std::optional<Url> parse_url(std::string_view text);
/// Returns where a redirection from `from` leads.
std::optional<Url> follow_location(const Url& from, std::string_view location);

/// RFC 3986: all but letters, digits, "-._~" and those in `kept` become %XX.
std::string percent_encode(std::string_view text, std::string_view kept = "");
/// Returns nothing for a % without two digits behind it.
std::optional<std::string> percent_decode(std::string_view text);

/// ASCII letters only, as names of headers and hosts have them.
std::string lower_case(std::string_view text);
/// Without spaces and tabs at both ends.
std::string_view trimmed(std::string_view text);

}  // namespace glu_ckpt
