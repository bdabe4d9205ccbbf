#include "core/base64.hpp"

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

u32 byte_at(std::string_view bytes, std::size_t i) {
  return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0;
}

}  // namespace

std::string base64_encode(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const u32 group = byte_at(bytes, i) << 16 | byte_at(bytes, i + 1) << 8 | byte_at(bytes, i + 2);
    for (std::size_t digit = 0; digit < 4; ++digit)
      text += i + digit > bytes.size() ? '=' : kDigits[group >> (18 - 6 * digit) & 63];
  }
  return text;
}

std::optional<std::string> base64_decode(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    u32 group = 0;
    std::size_t padding = 0;
    for (std::size_t digit = 0; digit < 4; ++digit) {
      const char c = text[i + digit];
      const std::size_t value = kDigits.find(c);
      if (c == '=' && i + 4 == text.size() && digit >= 2)
        ++padding;
      else if (value == std::string_view::npos || padding > 0)
        return std::nullopt;
      group = group << 6 | (c == '=' ? 0 : static_cast<u32>(value));
    }
    for (std::size_t byte = 0; byte + padding < 3; ++byte) bytes += static_cast<char>(group >> (16 - 8 * byte) & 255);
  }
  return bytes;
}

}  // namespace glu_ckpt
