/// A field is compared under the name that it has in the text, but for those of rotary embeddings, which stand at the
/// top, in rope_scaling or in rope_parameters, as the release of transformers has it that wrote the file.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "arch/unread_fields.hpp"
#include "core/config_json.hpp"
#include "core/json.hpp"
#include "core/readable.hpp"
#include "families/family.hpp"
#include "glu_ckpt/config_difference.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMaxConfigDepth = 64;
constexpr std::string_view kRope[] = {"rope_scaling", "rope_parameters"};
constexpr std::string_view kQuantization = "quantization_config";

/// One number has one spelling.
std::string value_text(const JsonValue& value) {
  constexpr double kExact = 1e15;
  if (const auto flag = value.get<bool>()) return *flag ? "true" : "false";
  if (const auto integer = value.get<i64>()) return fmt::format("{}", *integer);
  if (const auto number = value.get<double>())
    return *number == std::floor(*number) && std::abs(*number) < kExact ? fmt::format("{}", static_cast<i64>(*number))
                                                                        : fmt::format("{}", *number);
  if (const auto text = value.get<std::string_view>()) return fmt::format("'{}'", printable(*text));
  if (value.kind() == JsonKind::Null) return "null";
  std::string text;
  for (const JsonValue item : value.items()) text += (text.empty() ? "" : ", ") + value_text(item);
  return "[" + text + "]";
}

class ComparedFields {
 public:
  explicit ComparedFields(const std::string& text) : document_(text, kMaxConfigDepth) {
    if (document_.fault() || document_.root().kind() != JsonKind::Object) return;
    const JsonValue root = document_.root();
    add_object(root);
    if (const auto inner = find_text_config(root)) add_object(*inner);
    add_sections(root, "");
    const JsonValue language = find_text_config(root).value_or(root);
    type_ = std::string(language.find<std::string_view>("model_type").value_or(""));
    values_.try_emplace("rope_type", "'default'");
  }

  const std::string& type() const { return type_; }
  const std::map<std::string, std::string>& values() const { return values_; }

  /// An object of rotary embeddings replaces the default one whole.
  void add_defaults() {
    const Family* const family = find_family(type_);
    if (family == nullptr) return;
    const JsonDocument defaults(std::string(family->defaults), kMaxConfigDepth);
    for (const auto& [key, value] : defaults.root().members())
      if (value.kind() != JsonKind::Object)
        values_.try_emplace(std::string(key), value_text(value));
      else if (is_rope(key) && !has_rope_)
        for (const auto& [inner, word] : value.members()) values_.try_emplace(std::string(inner), value_text(word));
  }

 private:
  static bool is_rope(std::string_view name) { return std::ranges::find(kRope, name) != std::end(kRope); }

  void add_object(const JsonValue& object) {
    for (const auto& [key, value] : object.members())
      if (value.kind() != JsonKind::Object && !(is_rope(key) && value.kind() == JsonKind::Null))
        values_[std::string(key)] = value_text(value);
    for (const std::string_view name : kRope)
      if (const auto inner = object.find(name); inner && inner->kind() == JsonKind::Object) {
        has_rope_ = true;
        add_rope(*inner, "");
      }
    if (const auto inner = object.find(kQuantization); inner && inner->kind() == JsonKind::Object)
      for (const auto& [key, value] : inner->members())
        if (value.kind() != JsonKind::Object && value.kind() != JsonKind::Array)
          values_[fmt::format("{}.{}", kQuantization, key)] = value_text(value);
  }

  /// A tower beside the language model, which sees, hears or talks, has an object of its own ("vision_config.depth").
  void add_sections(const JsonValue& object, const std::string& prefix) {
    constexpr std::string_view kSection = "_config", kText = "text_config", kThinker = "thinker_config";
    for (const auto& [key, section] : object.members()) {
      const bool is_language = key == kText && (prefix.empty() || prefix == fmt::format("{}.", kThinker));
      if (section.kind() != JsonKind::Object || !key.ends_with(kSection) || key == kQuantization || is_language)
        continue;
      const std::string inside = prefix + std::string(key) + ".";
      for (const auto& [field, value] : section.members())
        if (value.kind() != JsonKind::Object && !has_no_say(field))
          values_[inside + std::string(field)] = value_text(value);
      add_sections(section, inside);
    }
  }

  /// There may be an object for each kind of layer.
  void add_rope(const JsonValue& object, const std::string& prefix) {
    for (const auto& [key, value] : object.members())
      if (value.kind() == JsonKind::Object)
        add_rope(value, prefix + std::string(key) + ".");
      else
        values_[prefix + (key == "type" ? "rope_type" : std::string(key))] = value_text(value);
  }

  JsonDocument document_;
  std::string type_;
  std::map<std::string, std::string> values_;
  bool has_rope_ = false;
};

/// Programs take null for false.
bool are_equal(const std::string& a, const std::string& b) {
  const auto is_off = [](const std::string& value) { return value == "null" || value == "false"; };
  return a == b || (is_off(a) && is_off(b));
}

}  // namespace

std::vector<ConfigDifference> config_differences(const std::string& a, const std::string& b,
                                                 QuantizationFields quantization) {
  if (a.empty() || b.empty() || a == b) return {};
  ComparedFields left(a), right(b);
  // A default of one family says nothing of another.
  if (left.type() == right.type()) {
    left.add_defaults();
    right.add_defaults();
  }
  std::vector<ConfigDifference> found;
  for (const auto& [name, value] : left.values()) {
    const auto other = right.values().find(name);
    if (other == right.values().end() || are_equal(value, other->second) || has_no_say(name)) continue;
    if (name.starts_with(kQuantization) && quantization == QuantizationFields::Skip) continue;
    found.push_back({name, value, other->second});
  }
  return found;
}

std::string to_sentence(const std::vector<ConfigDifference>& differences, const std::string& a, const std::string& b) {
  constexpr std::size_t kShown = 8, kLongest = 80;
  const auto shown = [](const std::string& value) {
    return value.size() > kLongest ? value.substr(0, kLongest) + "..." : value;
  };
  std::string text;
  for (std::size_t i = 0; i < std::min(differences.size(), kShown); ++i)
    text += fmt::format("{}{} is {} in {} and {} in {}", text.empty() ? "" : "; ", printable(differences[i].field),
                        shown(differences[i].a), a, shown(differences[i].b), b);
  if (differences.size() > kShown) text += fmt::format("; and {} fields more", differences.size() - kShown);
  return text;
}

}  // namespace glu_ckpt
