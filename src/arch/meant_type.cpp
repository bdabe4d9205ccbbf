#include "arch/meant_type.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/compare_names.hpp"
#include "families/family.hpp"

namespace glu_ckpt {
namespace {

std::string digits_of(std::string_view text) {
  std::string digits(text);
  std::erase_if(digits, [](char c) { return c < '0' || c > '9'; });
  return digits;
}

}  // namespace

std::string words_of_meant_type(std::string_view model_type) {
  // A type with another number is another family, and no slip of the fingers. So may a short one be: pixtral, mixtral.
  constexpr std::size_t kLeastLetters = 8, kLettersForAnother = 6;
  if (model_type.size() < kLeastLetters) return {};
  std::size_t least = std::max<std::size_t>(1, model_type.size() / kLettersForAnother) + 1;
  std::string_view meant;
  for (const Family& family : families()) {
    if (std::ranges::find(family.wrappers, model_type, &Wrapper::model_type) != family.wrappers.end()) return {};
    const std::size_t distance = edit_distance(model_type, family.model_type);
    if (distance >= least || digits_of(model_type) != digits_of(family.model_type)) continue;
    least = distance;
    meant = family.model_type;
  }
  if (meant.empty()) return {};
  return fmt::format(" (config.json's model_type; did you mean '{}'?)", meant);
}

}  // namespace glu_ckpt
