#include "core/json_text.hpp"

namespace glu_ckpt {
namespace {

/// Returns the position behind the string that begins at `at`.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

}  // namespace

std::size_t json_value_end(std::string_view text, std::size_t at) {
  int depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return at;
      --depth;
    } else if (c == ',' && depth == 0) {
      return at;
    }
  }
  return at;
}

TextRange json_value_range(std::string_view text, std::size_t key) {
  const std::size_t begin = text.find(':', end_of_string(text, key)) + 1;
  const std::size_t end = json_value_end(text, begin);
  return {begin, text.find_last_not_of(" \t\r\n", end - 1) + 1};
}

}  // namespace glu_ckpt
