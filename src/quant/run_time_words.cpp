#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "quant/quant_config.hpp"

namespace glu_ckpt {
namespace {

/// A word without a value, such as null, false, "none" or an object of nothing else, says nothing.
bool is_empty(const JsonValue& value) {
  const auto none_of = [](const auto& range, const auto& is_nothing) {
    for (const auto entry : range)
      if (!is_nothing(entry)) return false;
    return true;
  };
  switch (value.kind()) {
    case JsonKind::Null: return true;
    case JsonKind::Bool: return !*value.get<bool>();
    case JsonKind::String: return value.get<std::string_view>()->empty() || value.get<std::string_view>() == "none";
    case JsonKind::Array: return none_of(value.items(), [](const JsonValue& item) { return is_empty(item); });
    case JsonKind::Object: return none_of(value.members(), [](const JsonMember& one) { return is_empty(one.value); });
    default: return value.get<double>() == 0.0;
  }
}

/// compressed-tensors' transforms: each is applied at some locations.
std::string transform_words(const JsonValue& transforms) {
  if (is_empty(transforms)) return {};
  const auto groups = transforms.find("config_groups");
  if (!groups || groups->kind() != JsonKind::Object) return "transform_config is in a form that is not known here";
  for (const auto& [name, group] : groups->members()) {
    const auto apply = group.find("apply");
    if (!apply || apply->kind() != JsonKind::Array)
      return fmt::format("transform_config does not say where its transform '{}' is applied", name);
    for (const JsonValue one : apply->items()) {
      const std::string_view location = one.find<std::string_view>("location").value_or("");
      if (!location.starts_with("weight_"))
        return fmt::format("transform_config has a transform '{}' at location '{}'", name, location);
    }
  }
  return {};
}

}  // namespace

std::string run_time_words(const JsonValue& config) {
  for (const auto& [key, value] : config.members()) {
    std::string text;
    if (key == "transform_config") {
      text = transform_words(value);
    } else {
      std::string word(key);
      std::ranges::transform(word, word.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      // GPTQModel's word is `rotation`, auto-round's are `rotation_config` and `hadamard_config`.
      const bool rotates = word.find("rotat") != std::string::npos || word.find("hadamard") != std::string::npos;
      // GPTQModel adds the low-rank parts of its `adapter` (EoRA, LoRA) to the decoded weights; SVDQuant has such, too.
      const bool adds = word == "adapter" || word == "lora" || word.starts_with("eora") || word.starts_with("svdquant");
      if ((rotates || adds) && !is_empty(value))
        text = value.get<std::string_view>() ? fmt::format("{} is '{}'", key, *value.get<std::string_view>())
                                             : fmt::format("{} is set", key);
      else if (value.kind() == JsonKind::Object && !rotates && !adds)
        text = run_time_words(value);
    }
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace glu_ckpt
