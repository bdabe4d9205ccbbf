#pragma once
/// JSON: reading with limits (simdjson), writing.

#include <simdjson.h>

#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Number: a token that is no JSON number, or one that fits neither 64 bits nor a double.
enum class JsonFault { None, Utf8, Depth, Number, Syntax };

/// A parsed document. Strings point into the parser, so the object must outlive what it returned.
class JsonDocument {
 public:
  /// Parses `text`, at most `max_depth` levels deep. On a fault, root() must not be called.
  JsonDocument(std::string_view text, std::size_t max_depth);
  JsonFault fault() const { return fault_; }
  /// The parser's own words for the fault.
  const std::string& message() const { return message_; }
  simdjson::dom::element root() const { return root_; }

 private:
  simdjson::dom::parser parser_;
  simdjson::dom::element root_;
  JsonFault fault_ = JsonFault::None;
  std::string message_;
};

/// `text` as a quoted JSON string; non-ASCII is written as it is, as serde_json does. Bytes that are no UTF-8, which
/// names of files may hold, become U+FFFD.
std::string json_string(std::string_view text);

/// Writes JSON text, keys in call order. `indent` 0 writes everything on one line.
class JsonWriter {
 public:
  explicit JsonWriter(int indent = 0) : indent_(indent) {}
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(i64 number);
  JsonWriter& value(int number) { return value(static_cast<i64>(number)); }
  JsonWriter& value(double number);
  JsonWriter& value(bool flag);
  JsonWriter& null();
  template <typename T>
  JsonWriter& field(std::string_view name, const T& content) {
    key(name);
    return value(content);
  }
  const std::string& text() const { return text_; }

 private:
  void separate();
  void raw(std::string_view text);
  void newline(std::size_t depth);

  int indent_;
  std::string text_;
  /// One entry per open container: whether it has a member already.
  std::vector<bool> has_member_;
  bool after_key_ = false;
};

}  // namespace glu_ckpt
