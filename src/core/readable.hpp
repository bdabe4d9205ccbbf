#pragma once
/// Texts out of files, which may be no texts, and numbers, as people read them.

#include <cstddef>
#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// `text` with control characters written as \xNN and cut at a length that a terminal can bear: names in
/// a file are not to be trusted.
std::string printable(std::string_view text);

/// Says what a file is that stands in place of the one that was meant, by its first bytes: a Git LFS pointer, a page
/// that a server sent, or, where a binary file was meant, any text; and the way on. Empty for other files.
enum class Meant { Text, Binary };
std::string_view stand_in_text(std::string_view first_bytes, Meant meant);

/// "1.31 TB", decimal units as disks are sold.
std::string size_text(i64 bytes);

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
