#include "core/json.hpp"

#include <fmt/format.h>

#include <cmath>

namespace glu_ckpt {

JsonDocument::JsonDocument(std::string_view text, std::size_t max_depth) {
  // The parser copies even no bytes, and must not be given no address to copy them from.
  if (text.data() == nullptr) text = "";
  auto error = parser_.allocate(std::max<std::size_t>(text.size(), 64), max_depth);
  if (!error) error = parser_.parse(text.data(), text.size()).get(root_);
  if (!error) return;
  message_ = simdjson::error_message(error);
  if (error == simdjson::UTF8_ERROR)
    fault_ = JsonFault::Utf8;
  else if (error == simdjson::DEPTH_ERROR)
    fault_ = JsonFault::Depth;
  else if (error == simdjson::NUMBER_ERROR)
    fault_ = JsonFault::Number;
  else
    fault_ = JsonFault::Syntax;
}

namespace {

/// Bytes of the character of two or more that `text` begins with; 0 where it is none.
std::size_t character_bytes(std::string_view text) {
  for (std::size_t bytes = 2; bytes <= std::min<std::size_t>(4, text.size()); ++bytes)
    if (simdjson::validate_utf8(text.substr(0, bytes))) return bytes;
  return 0;
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (byte < 0x20) {
          out += fmt::format("\\u{:04x}", byte);
        } else if (byte < 0x80) {
          out += c;
        } else if (const std::size_t bytes = character_bytes(text.substr(i)); bytes > 0) {
          out += text.substr(i, bytes);
          i += bytes - 1;
        } else {
          out += "\\ufffd";
        }
    }
  }
  return out + '"';
}

void JsonWriter::newline(std::size_t depth) {
  if (indent_ == 0) return;
  text_ += '\n';
  text_.append(depth * static_cast<std::size_t>(indent_), ' ');
}

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_member_.empty()) return;
  if (has_member_.back()) text_ += ',';
  has_member_.back() = true;
  newline(has_member_.size());
}

void JsonWriter::raw(std::string_view text) {
  separate();
  text_ += text;
}

JsonWriter& JsonWriter::begin_object() {
  raw("{");
  has_member_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::end_object() {
  const bool had = has_member_.back();
  has_member_.pop_back();
  if (had) newline(has_member_.size());
  text_ += '}';
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  raw("[");
  has_member_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  const bool had = has_member_.back();
  has_member_.pop_back();
  if (had) newline(has_member_.size());
  text_ += ']';
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  text_ += json_string(name);
  text_ += indent_ == 0 ? ":" : ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  raw(json_string(text));
  return *this;
}

JsonWriter& JsonWriter::value(i64 number) {
  raw(fmt::format("{}", number));
  return *this;
}

JsonWriter& JsonWriter::value(double number) {
  raw(std::isfinite(number) ? fmt::format("{}", number) : "null");
  return *this;
}

JsonWriter& JsonWriter::value(bool flag) {
  raw(flag ? "true" : "false");
  return *this;
}

JsonWriter& JsonWriter::null() {
  raw("null");
  return *this;
}

}  // namespace glu_ckpt
