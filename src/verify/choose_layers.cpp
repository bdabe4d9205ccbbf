#include "verify/choose_layers.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "core/fail.hpp"
#include "core/parse_number.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {
namespace {

std::optional<i64> number_of(std::string_view text) {
  const auto number = parse_number<i64>(text);
  return number && text[0] != '-' ? number : std::nullopt;
}

/// Returns whether an item names the layer; a label may hold a dash itself.
bool names(std::string_view item, const std::string& label) {
  if (item == label) return true;
  const std::size_t dash = item.find('-');
  if (dash == std::string_view::npos) return false;
  const auto first = number_of(item.substr(0, dash));
  const auto last = number_of(item.substr(dash + 1));
  const auto layer = number_of(label);
  if (first && last && *first > *last) fail(ErrorCode::Usage, {}, "--layers: {} is no range of layers", item);
  return first && last && layer && *first <= *layer && *layer <= *last;
}

}  // namespace

std::vector<std::string> choose_layers(const std::vector<std::string>& labels, const std::string& list) {
  if (list.empty()) return labels;
  std::set<std::string> chosen;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view item = std::string_view(list).substr(begin, end - begin);
    if (item.empty()) fail(ErrorCode::Usage, {}, "--layers: '{}' is not a list such as 3,5-7", list);
    bool found = false;
    for (const std::string& label : labels)
      if (names(item, label)) {
        chosen.insert(label);
        found = true;
      }
    if (!found)
      fail(ErrorCode::LayerMissing, {}, "--layers: there are no experts in a layer {}; layers with experts: {}", item,
           fmt::join(labels, ", "));
    begin = end + 1;
  }
  std::vector<std::string> layers;
  for (const std::string& label : labels)
    if (chosen.contains(label)) layers.push_back(label);
  return layers;
}

}  // namespace glu_ckpt
