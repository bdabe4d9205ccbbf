#include "core/compare_names.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

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

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> rows(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    rows[i][0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.size()][b.size()];
}

}  // namespace glu_ckpt
