#include "core/config_json.hpp"

#include <fmt/format.h>

#include <cmath>

namespace glu_ckpt {
namespace {

std::string bound_text(double bound) {
  return bound == kTiny ? std::string("more than 0") : fmt::format("{} or more", bound);
}

std::string expectation(const JsonField& row) {
  const std::string range =
      row.most >= kHuge ? bound_text(row.least) : fmt::format("{} and at most {}", bound_text(row.least), row.most);
  switch (row.type) {
    case JsonType::Integer: return "a whole number, " + range;
    case JsonType::Number: return "a number, " + range;
    case JsonType::Flag: return "true or false";
    case JsonType::Text: return "a text";
    case JsonType::Object: return "an object";
    case JsonType::Texts: return "a list of texts that is not empty";
    case JsonType::List: return "a list";
    case JsonType::Integers: return "a list of whole numbers, each " + range;
  }
  return {};
}

bool is_within(const JsonField& row, double value) { return value >= row.least && value <= row.most; }

bool fits(const JsonField& row, const JsonValue& value) {
  const auto is_integer = [&](const JsonValue& item) {
    const auto number = item.get<i64>();
    return number && is_within(row, static_cast<double>(*number));
  };
  switch (row.type) {
    case JsonType::Integer: return is_integer(value);
    case JsonType::Number: {
      const auto number = value.get<double>();
      return number && std::isfinite(*number) && is_within(row, *number);
    }
    case JsonType::Flag: return value.get<bool>().has_value();
    case JsonType::Text: return !value.get<std::string_view>().value_or("").empty();
    case JsonType::Object: return value.kind() == JsonKind::Object;
    case JsonType::List: return value.kind() == JsonKind::Array;
    case JsonType::Texts:
    case JsonType::Integers:
      if (value.kind() != JsonKind::Array || (row.type == JsonType::Texts && value.size() == 0)) return false;
      for (const JsonValue item : value.items())
        if (row.type == JsonType::Texts ? !item.get<std::string_view>() : !is_integer(item)) return false;
      return true;
  }
  return true;
}

std::string value_text(const JsonValue& value) {
  // What JSON has no place for, such as Infinity, is read as an empty text (without_python_numbers()).
  if (value.get<std::string_view>() == "") return "empty or a number that is too large";
  if (const auto text = value.get<std::string_view>()) return fmt::format("\"{}\"", text->substr(0, 40));
  if (const auto flag = value.get<bool>()) return *flag ? "true" : "false";
  if (const auto integer = value.get<i64>()) return fmt::format("{}", *integer);
  if (const auto number = value.get<double>())
    return fmt::format("{}{}", *number, *number == std::floor(*number) && std::abs(*number) < 1e15 ? ".0" : "");
  if (value.kind() == JsonKind::Object) return "an object";
  if (value.kind() != JsonKind::Array) return "no value that is known";
  std::string text;
  for (const JsonValue item : value.items()) {
    if (text.size() > 40) return "[" + text + ", ...]";
    text += (text.empty() ? "" : ", ") + value_text(item);
  }
  return "[" + text + "]";
}

/// Returns the position behind the string that begins at `at`.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

}  // namespace

std::string fault_of(const JsonField& field, std::string_view name, const JsonValue& value) {
  if (value.kind() == JsonKind::Null || fits(field, value)) return {};
  return fmt::format("{} is {}, where {} is expected", name, value_text(value), expectation(field));
}

std::size_t json_value_end(std::string_view text, std::size_t at) {
  int depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return at;
      --depth;
    } else if (c == ',' && depth == 0) {
      return at;
    }
  }
  return at;
}

TextRange json_value_range(std::string_view text, std::size_t key) {
  const std::size_t begin = text.find(':', end_of_string(text, key)) + 1;
  const std::size_t end = json_value_end(text, begin);
  return {begin, text.find_last_not_of(" \t\r\n", end - 1) + 1};
}

}  // namespace glu_ckpt
