#pragma once
/// The config.json of a multimodal model describes the language model inside in an object of its own.

#include <optional>

#include "core/json.hpp"

namespace glu_ckpt {

/// Returns the object `text_config` of the configuration, or of the model that thinks in one that also talks; none
/// where the model is a language model itself.
inline std::optional<JsonValue> find_text_config(const JsonValue& root) {
  auto found = root.find("text_config");
  if (!found)
    if (const auto thinker = root.find("thinker_config"); thinker && thinker->kind() == JsonKind::Object)
      found = thinker->find("text_config");
  return found && found->kind() == JsonKind::Object ? found : std::nullopt;
}

}  // namespace glu_ckpt
