#include "families/config_fields.hpp"

#include <algorithm>

#include "core/config_json.hpp"
#include "core/json.hpp"
#include "families/arg_rows.hpp"
#include "families/family.hpp"

namespace glu_ckpt {

/// Writes the members of JSON objects into a map of fields.
class ConfigFlattener {
 public:
  using Values = ConfigFields::Values;
  explicit ConfigFlattener(Values& values) : values_(values) {}

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
      values_[name] = *flag;
    else if (const auto integer = value.get<i64>())
      values_[name] = *integer;
    else if (const auto number = value.get<double>())
      values_[name] = *number;
    else if (const auto text = value.get<std::string_view>())
      values_[name] = std::string(*text);
    else if (value.kind() == JsonKind::Null)
      values_.try_emplace(name);
  }

  void add_array(const std::string& name, const JsonValue& array) {
    std::vector<i64> integers;
    std::vector<std::string> texts;
    for (const JsonValue item : array.items()) {
      if (const auto integer = item.get<i64>()) integers.push_back(*integer);
      if (const auto text = item.get<std::string_view>()) texts.emplace_back(*text);
    }
    if (integers.size() == array.size()) values_[name] = std::move(integers);
    if (texts.size() == array.size() && array.size() > 0) values_[name] = std::move(texts);
  }

  Values& values_;
};

constexpr std::size_t kMaxConfigDepth = 64;

namespace {

bool is_off(const JsonValue& value) {
  if (const auto flag = value.get<bool>()) return !*flag;
  if (const auto number = value.get<double>()) return *number == 0.0 || *number == 1.0;
  if (const auto text = value.get<std::string_view>()) return text->empty();
  return value.size() == 0;
}

}  // namespace

ConfigFields::ConfigFields(const std::string& text) {
  const JsonDocument document(text, kMaxConfigDepth);
  if (document.fault() || document.root().kind() != JsonKind::Object) return;
  ConfigFlattener flattener(values_);
  flattener.add(document.root(), "");
  if (const auto inner = find_text_config(document.root())) {
    flattener.add(*inner, "");
    // The head is the whole model's, not the language model's, which transformers writes a word of its own about.
    constexpr std::string_view kTied = "tie_word_embeddings";
    if (const auto tied = document.root().find<bool>(kTied)) values_[std::string(kTied)] = *tied;
  }
  const auto note = [&](const JsonValue& object, const std::string& prefix) {
    for (const auto& [key, value] : object.members()) {
      if (value.kind() == JsonKind::Object) continue;
      const auto at = static_cast<std::size_t>(value.offset());
      const TextRange range = json_value_range(text, at);
      const std::size_t begin = text.find_first_not_of(" \t\r\n", range.begin);
      said_.push_back({prefix + std::string(key), text.substr(begin, range.end - begin), is_off(value)});
    }
  };
  const JsonValue language = find_text_config(document.root()).value_or(document.root());
  note(language, "");
  for (const std::string rope : {"rope_parameters", "rope_scaling"})
    if (const auto inner = language.find(rope)) note(*inner, rope + ".");
  std::ranges::sort(said_, {}, &Said::name);
  choose_rope();
  add_defaults();
}

void ConfigFields::choose_rope() {
  constexpr std::string_view kNew = "rope_parameters.", kOld = "rope_scaling.";
  const auto begins = [](std::string_view prefix) {
    return [=](const auto& entry) { return entry.first.starts_with(prefix); };
  };
  if (std::ranges::none_of(values_, begins(kOld))) return;
  // These two may stand beside rope_scaling.
  std::erase_if(values_, [&](const auto& entry) {
    return begins(kNew)(entry) && !entry.first.ends_with(".rope_theta") &&
           !entry.first.ends_with(".partial_rotary_factor");
  });
}

void ConfigFields::add_defaults() {
  family_ = find_family(this->text({"model_type"}));
  if (family_ == nullptr) return;
  const JsonDocument document(std::string(family_->defaults), kMaxConfigDepth);
  ConfigFlattener(defaults_).add(document.root(), "");
  for (const auto& [name, value] : defaults_) class_fields_.insert(name);
  for (const std::span<const ArgRow> rows : family_->args)
    for (const ArgRow& row : rows) class_fields_.emplace(family_->own_word(row.field));
  constexpr std::string_view kRope = "rope_parameters.";
  const bool has_rope = std::ranges::any_of(values_, [&](const auto& entry) {
    return entry.first.starts_with(kRope) || entry.first.starts_with("rope_scaling.");
  });
  // An object that is there, under either of its names, replaces the default one whole.
  std::erase_if(defaults_, [&](const auto& entry) {
    return values_.contains(entry.first) || (has_rope && entry.first.starts_with(kRope));
  });
}

std::string_view ConfigFields::own_word(std::string_view name) const {
  return family_ == nullptr ? name : family_->own_word(name);
}

const ConfigFields::Value* ConfigFields::look_up(const Values& values, std::string_view name) const {
  const auto found = values.find(own_word(name));
  return found == values.end() ? nullptr : &found->second;
}

void ConfigFields::note_read(Spellings names) const {
  for (const std::string_view name : names) read_.emplace(own_word(name));
}

template <typename Type>
const Type* ConfigFields::find(Spellings names) const {
  note_read(names);
  for (const Values* values : {&values_, &defaults_})
    for (const std::string_view name : names)
      if (const auto* value = std::get_if<Type>(look_up(*values, name))) return value;
  return nullptr;
}

std::optional<i64> ConfigFields::integer(Spellings names) const {
  const i64* value = find<i64>(names);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

std::optional<double> ConfigFields::number(Spellings names) const {
  note_read(names);
  for (const Values* values : {&values_, &defaults_})
    for (const std::string_view name : names) {
      const Value* const found = look_up(*values, name);
      if (const auto* value = std::get_if<double>(found)) return *value;
      if (const auto* value = std::get_if<i64>(found)) return static_cast<double>(*value);
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

bool ConfigFields::has(std::string_view name) const {
  note_read({name});
  const Value* const found = look_up(values_, name);
  return found != nullptr && !std::holds_alternative<std::monostate>(*found);
}

bool ConfigFields::is_of_class(std::string_view name) const { return class_fields_.contains(own_word(name)); }

bool ConfigFields::is_null(std::string_view name) const {
  const Value* const found = look_up(values_, name);
  return found != nullptr && std::holds_alternative<std::monostate>(*found);
}

std::vector<std::string> ConfigFields::nulls() const {
  std::vector<std::string> names;
  for (const Said& said : said_)
    if (said.value == "null") names.push_back(said.name);
  return names;
}

std::string ConfigFields::said(std::string_view name) const {
  const auto found = std::ranges::find(said_, own_word(name), &Said::name);
  return found == said_.end() ? std::string() : found->value;
}

std::vector<ConfigFields::Said> ConfigFields::unread() const {
  std::vector<Said> unread = said_;
  std::erase_if(unread, [&](const Said& said) { return read_.contains(said.name); });
  return unread;
}

std::string_view ConfigFields::spelling(Spellings names) const {
  for (const std::string_view name : names)
    if (has(name)) return own_word(name);
  return own_word(*names.begin());
}

}  // namespace glu_ckpt
