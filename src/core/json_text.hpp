#pragma once
/// Where values stand in the text of a JSON document that parses, so that one can be replaced and all other bytes stay.

#include <cstddef>
#include <string_view>

namespace glu_ckpt {

/// [begin, end) of a text.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// The end of the value that begins at `at`: a text that parses has one.
std::size_t json_value_end(std::string_view text, std::size_t at);

/// The value of the member whose key begins at `key`, without the space behind it.
TextRange json_value_range(std::string_view text, std::size_t key);

}  // namespace glu_ckpt
