#include "core/natural_order.hpp"

#include <algorithm>
#include <cstddef>

namespace glu_ckpt {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The digit run that starts at `at`, without leading zeros.
std::string_view take_number(std::string_view text, std::size_t& at) {
  while (at < text.size() && text[at] == '0') ++at;
  const std::size_t begin = at;
  while (at < text.size() && is_digit(text[at])) ++at;
  return text.substr(begin, at - begin);
}

}  // namespace

std::string natural_key(std::string_view name) {
  // A number is '0', its length, its digits: beside other text it takes the place that digits have there, and of two
  // numbers the longer one is the greater.
  constexpr std::size_t kLongNumber = 255;
  std::string key;
  key.reserve(name.size() + 8);
  for (std::size_t at = 0; at < name.size();) {
    if (!is_digit(name[at])) {
      key += name[at++];
      continue;
    }
    const std::string_view number = take_number(name, at);
    key += '0';
    key += static_cast<char>(std::min(number.size(), kLongNumber));
    if (number.size() >= kLongNumber)
      for (int shift = 24; shift >= 0; shift -= 8) key += static_cast<char>(number.size() >> shift);
    key += number;
  }
  return key;
}

}  // namespace glu_ckpt
