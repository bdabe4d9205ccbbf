#pragma once
/// config.json and its like: fields that a rule reads, the language model's own object, and where values stand in the
/// text, so that one can be replaced and all other bytes stay.

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/json.hpp"

namespace glu_ckpt {

/// Texts is a list of texts that is not empty, List one of anything.
enum class JsonType { Integer, Number, Flag, Text, Object, Texts, List, Integers };

/// No number of a model that must be more than 0 is less; none has a greater bound.
constexpr double kTiny = 1e-30, kHuge = 1e18;

/// Names of one field, in a call: families spell it differently, and the first name that is there counts.
class Spellings : public std::span<const std::string_view> {
 public:
  constexpr Spellings(std::initializer_list<std::string_view> names) : span(names.begin(), names.size()) {}
  template <std::size_t kNames>
  constexpr Spellings(const std::array<std::string_view, kNames>& names) : span(names) {}
};

/// Spellings of the number of routed experts.
inline constexpr std::array<std::string_view, 4> kExpertCounts = {"num_experts", "num_local_experts",
                                                                  "n_routed_experts", "moe_num_experts"};

struct JsonField {
  std::string_view name;
  JsonType type;
  /// Bounds of a number, both within; of a list of integers, of each.
  double least = 0;
  double most = 0;
};

/// "bits is "four", where a whole number, 1 or more and at most 64, is expected"; empty where the value is of the type
/// and within the range. Null is absence, and an integer is a number. `name` is what the message calls it.
std::string fault_of(const JsonField& field, std::string_view name, const JsonValue& value);

/// Returns the object `text_config` of the configuration, or of the model that thinks in one that also talks; none
/// where the model is a language model itself.
inline std::optional<JsonValue> find_text_config(const JsonValue& root) {
  auto found = root.find("text_config");
  if (!found)
    if (const auto thinker = root.find("thinker_config"); thinker && thinker->kind() == JsonKind::Object)
      found = thinker->find("text_config");
  return found && found->kind() == JsonKind::Object ? found : std::nullopt;
}

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
