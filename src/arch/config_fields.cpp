#include "arch/config_fields.hpp"

#include "core/json.hpp"

namespace glu_ckpt {

/// Writes the members of JSON objects into the fields' map.
class ConfigFlattener {
 public:
  explicit ConfigFlattener(ConfigFields& fields) : fields_(fields) {}

  void add(const JsonValue& object, const std::string& prefix) {
    for (const auto& [key, value] : object.members()) add_member(prefix + std::string(key), value);
  }

 private:
  void add_member(const std::string& name, const JsonValue& value) {
    if (value.kind() == JsonKind::Object)
      add(value, name + ".");
    else if (value.kind() == JsonKind::Array)
      add_array(name, value);
    else if (const auto flag = value.get<bool>())
      fields_.values_[name] = *flag;
    else if (const auto integer = value.get<i64>())
      fields_.values_[name] = *integer;
    else if (const auto number = value.get<double>())
      fields_.values_[name] = *number;
    else if (const auto text = value.get<std::string_view>())
      fields_.values_[name] = std::string(*text);
  }

  void add_array(const std::string& name, const JsonValue& array) {
    std::vector<i64> integers;
    std::vector<std::string> texts;
    for (const JsonValue item : array.items()) {
      if (const auto integer = item.get<i64>()) integers.push_back(*integer);
      if (const auto text = item.get<std::string_view>()) texts.emplace_back(*text);
    }
    if (integers.size() == array.size()) fields_.values_[name] = std::move(integers);
    if (texts.size() == array.size() && array.size() > 0) fields_.values_[name] = std::move(texts);
  }

  ConfigFields& fields_;
};

ConfigFields::ConfigFields(const std::string& text) {
  constexpr std::size_t kMaxDepth = 64;
  const JsonDocument document(text, kMaxDepth);
  if (document.fault() || document.root().kind() != JsonKind::Object) return;
  ConfigFlattener flattener(*this);
  flattener.add(document.root(), "");
  const auto inner = document.root().find("text_config");
  if (!inner) return;
  flattener.add(*inner, "");
  // The head is the whole model's, not the language model's, which transformers writes a word of its own about.
  constexpr std::string_view kTied = "tie_word_embeddings";
  if (const auto tied = document.root().find<bool>(kTied)) values_[std::string(kTied)] = *tied;
}

template <typename Type>
const Type* ConfigFields::find(Spellings names) const {
  for (const std::string_view name : names)
    if (const auto found = values_.find(name); found != values_.end())
      if (const auto* value = std::get_if<Type>(&found->second)) return value;
  return nullptr;
}

std::optional<i64> ConfigFields::integer(Spellings names) const {
  const i64* value = find<i64>(names);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<double> ConfigFields::number(Spellings names) const {
  for (const std::string_view name : names) {
    if (const double* value = find<double>({name})) return *value;
    if (const i64* value = find<i64>({name})) return static_cast<double>(*value);
  }
  return std::nullopt;
}

std::optional<bool> ConfigFields::flag(Spellings names) const {
  const bool* value = find<bool>(names);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::string ConfigFields::text(Spellings names) const {
  const std::string* value = find<std::string>(names);
  return value != nullptr ? *value : std::string();
}

std::vector<i64> ConfigFields::integers(Spellings names) const {
  const auto* value = find<std::vector<i64>>(names);
  return value != nullptr ? *value : std::vector<i64>();
}

std::vector<std::string> ConfigFields::texts(Spellings names) const {
  const auto* value = find<std::vector<std::string>>(names);
  return value != nullptr ? *value : std::vector<std::string>();
}

std::string_view ConfigFields::spelling(Spellings names) const {
  for (const std::string_view name : names)
    if (values_.contains(name)) return name;
  return *names.begin();
}

}  // namespace glu_ckpt
