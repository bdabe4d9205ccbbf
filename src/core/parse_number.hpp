#pragma once
/// Numbers that are all of a text.

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace glu_ckpt {

/// Returns nothing where the text is anything but one number that fits: spaces, a plus sign, units. `base` is for
/// integers.
template <typename Number>
std::optional<Number> parse_number(std::string_view text, int base = 10) {
  Number number{};
  std::from_chars_result result{};
  if constexpr (std::integral<Number>)
    result = std::from_chars(text.data(), text.data() + text.size(), number, base);
  else
    result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace glu_ckpt
