#include "core/readable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace glu_ckpt {

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

namespace {

constexpr std::pair<std::string_view, std::string_view> kOtherFiles[] = {
    {"GGUF", "it is a GGUF file, which llama.cpp reads; take the model in safetensors from where it was made"},
    {"\x1f\x8b", "it is a file that gzip packed; unpack it"},
    {"\x89HDF", "it is an HDF5 file of Keras or TensorFlow; take the model in safetensors from where it was made"},
};

}  // namespace

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

}  // namespace glu_ckpt
