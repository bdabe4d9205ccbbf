#pragma once
/// Numbers that are all of a text.

#include <charconv>
#include <concepts>
#include <cstdint>
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

/// Returns the number of a layer or expert as keys spell it: programs look for "layers.1.", and never find
/// "layers.01.".
inline std::optional<std::int64_t> parse_index(std::string_view text) {
  return text.size() > 1 && text.front() == '0' ? std::nullopt : parse_number<std::int64_t>(text);
}

}  // namespace glu_ckpt
