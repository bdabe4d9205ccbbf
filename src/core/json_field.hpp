#pragma once
/// One field of a JSON object that a rule reads: its type and its range.

#include <string>
#include <string_view>

#include "core/json.hpp"

namespace glu_ckpt {

/// Texts is a list of texts that is not empty, List one of anything.
enum class JsonType { Integer, Number, Flag, Text, Object, Texts, List, Integers };

/// No number of a model that must be more than 0 is less; none has a greater bound.
constexpr double kTiny = 1e-30, kHuge = 1e18;

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

}  // namespace glu_ckpt
