#include "core/readable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

namespace glu_ckpt {
namespace {

constexpr std::pair<std::string_view, std::string_view> kOtherFiles[] = {
    {"GGUF", "it is a GGUF file, which llama.cpp reads; take the model in safetensors from where it was made"},
    {"\x1f\x8b", "it is a file that gzip packed; unpack it"},
    {"\x89HDF", "it is an HDF5 file of Keras or TensorFlow; take the model in safetensors from where it was made"},
};

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t kMostBytes = 4000;
  std::string out;
  for (const char c : text.substr(0, kMostBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return text.size() > kMostBytes ? out + "..." : out;
}

std::string_view stand_in_text(std::string_view first_bytes, Meant meant) {
  if (first_bytes.starts_with("version "))
    return "it begins with 'version', as a Git LFS pointer does, which stands in place of the file; `git lfs pull` "
           "fetches the file itself";
  if (meant == Meant::Binary)
    for (const auto& [signature, what] : kOtherFiles)
      if (first_bytes.starts_with(signature)) return what;
  // A length or a signature takes the first 8 bytes of any binary file.
  const bool is_text = std::ranges::all_of(first_bytes.substr(0, 8),
                                           [](char c) { return (c >= ' ' && c <= '~') || (c >= '\t' && c <= '\r'); });
  if (meant == Meant::Binary && !is_text) return {};
  const std::size_t begin = first_bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (begin != first_bytes.npos && first_bytes[begin] == '<')
    return "it is a page of HTML or XML, such as a server sends in place of a file; download the file itself again";
  if (meant == Meant::Binary)
    return "it is text, such as a server's message in place of a file; look into it, and download the file again";
  return {};
}

std::string size_text(i64 bytes) {
  constexpr std::string_view kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1000 && unit + 1 < std::size(kUnits)) {
    amount /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", amount, kUnits[unit]);
}

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
