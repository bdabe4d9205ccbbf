#include "core/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace glu_ckpt {

std::size_t utf8_character(std::string_view text, Surrogates surrogates) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc0 || lead > 0xf4 || text.size() < bytes) return 0;
  unsigned code = lead & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr unsigned kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool valid = code >= kLeast[bytes] && code <= 0x10ffff && (!is_surrogate || surrogates == Surrogates::Pass);
  return valid ? bytes : 0;
}

std::size_t utf8_prefix(std::string_view text, Surrogates surrogates) {
  for (std::size_t at = 0; at < text.size();) {
    // Most texts are ASCII, which is skipped eight bytes at a time.
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) std::memcpy(&eight, text.data() + at, sizeof eight);
    if (text.size() - at >= sizeof eight && (eight & 0x8080808080808080u) == 0) {
      at += sizeof eight;
      continue;
    }
    const std::size_t bytes = utf8_character(text.substr(at), surrogates);
    if (bytes == 0) return at;
    at += bytes;
  }
  return text.size();
}

}  // namespace glu_ckpt
