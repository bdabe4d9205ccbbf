#pragma once
/// UTF-8 in names and texts out of files.

#include <cstddef>
#include <string_view>

namespace glu_ckpt {

/// Pass: a surrogate alone is a character of three bytes, as in Python's "surrogatepass".
enum class Surrogates { Refused, Pass };

/// Bytes of the character that `text` begins with; 0 where it begins with none.
std::size_t utf8_character(std::string_view text, Surrogates surrogates = Surrogates::Refused);

/// Bytes before the first one that belongs to no character.
std::size_t utf8_prefix(std::string_view text, Surrogates surrogates = Surrogates::Refused);

inline bool is_utf8(std::string_view text, Surrogates surrogates = Surrogates::Refused) {
  return utf8_prefix(text, surrogates) == text.size();
}

}  // namespace glu_ckpt
