#include "arch/config_fields.hpp"

#include "core/json.hpp"

namespace glu_ckpt {

/// Writes the members of JSON objects into the fields' map.
class ConfigFlattener {
 public:
  explicit ConfigFlattener(ConfigFields& fields) : fields_(fields) {}

  void add(const simdjson::dom::object& object, const std::string& prefix) {
    for (const auto& [key, value] : object) add_member(prefix + std::string(key), value);
  }

 private:
  void add_member(const std::string& name, const simdjson::dom::element& value) {
    simdjson::dom::object object;
    simdjson::dom::array array;
    bool flag = false;
    i64 integer = 0;
    double number = 0;
    std::string_view text;
    if (!value.get(object))
      add(object, name + ".");
    else if (!value.get(array))
      add_array(name, array);
    else if (!value.get(flag))
      fields_.values_[name] = flag;
    else if (!value.get(integer))
      fields_.values_[name] = integer;
    else if (!value.get(number))
      fields_.values_[name] = number;
    else if (!value.get(text))
      fields_.values_[name] = std::string(text);
  }

  void add_array(const std::string& name, const simdjson::dom::array& array) {
    std::vector<i64> integers;
    std::vector<std::string> texts;
    for (const simdjson::dom::element item : array) {
      i64 integer = 0;
      std::string_view text;
      if (!item.get(integer)) integers.push_back(integer);
      if (!item.get(text)) texts.emplace_back(text);
    }
    if (integers.size() == array.size()) fields_.values_[name] = std::move(integers);
    if (texts.size() == array.size() && array.size() > 0) fields_.values_[name] = std::move(texts);
  }

  ConfigFields& fields_;
};

ConfigFields::ConfigFields(const std::string& text) {
  constexpr std::size_t kMaxDepth = 64;
  const JsonDocument document(text, kMaxDepth);
  simdjson::dom::object root;
  if (document.fault() != JsonFault::None || document.root().get(root)) return;
  ConfigFlattener flattener(*this);
  flattener.add(root, "");
  simdjson::dom::object inner;
  if (!root["text_config"].get(inner)) flattener.add(inner, "");
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
