#include "core/readable.hpp"

#include <fmt/format.h>

#include <iterator>

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
