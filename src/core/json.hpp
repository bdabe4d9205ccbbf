#pragma once
/// JSON: a strict reader with limits, which knows where in the text each value is, and a writer.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Integer: a whole number that an i64 holds. Unsigned: a larger one that a u64 holds. Number: one with a fraction or
/// an exponent.
enum class JsonKind : std::uint8_t { Null, Bool, Integer, Unsigned, Number, String, Array, Object };

/// One row of a document's table. What a container holds follows it, in the order of the text; a member is the row of
/// its key and the rows of its value.
struct JsonNode {
  union {
    const char* text = nullptr;
    bool flag;
    i64 integer;
    u64 natural;
    double number;
  };
  /// Bytes of a string, items of an array, members of an object.
  u32 size = 0;
  /// Rows from this one to the next value or key beside it.
  u32 rows = 1;
  u32 offset = 0;
  JsonKind kind = JsonKind::Null;
};

template <typename Entry>
class JsonRange;
struct JsonMember;

/// A value of a JsonDocument, which must outlive it.
class JsonValue {
 public:
  explicit JsonValue(const JsonNode* node) : node_(node) {}

  JsonKind kind() const { return node_->kind; }
  /// The value as a bool, i64, u64, double or std::string_view; none where it is no such value. Each kind of number is
  /// a double, too.
  template <typename T>
  std::optional<T> get() const;
  /// The number of items or members.
  std::size_t size() const { return is_container() ? node_->size : 0; }
  /// Returns where the value begins in the text; for a member, where its key begins.
  i64 offset() const { return node_->offset; }

  /// Both are empty for a value of another kind. A key that is there twice is two members.
  JsonRange<JsonValue> items() const;
  JsonRange<JsonMember> members() const;
  /// The last member of that name, as Python's json takes it; none in what is no object.
  std::optional<JsonValue> find(std::string_view name) const;
  /// Returns the value of that member as T.
  template <typename T>
  std::optional<T> find(std::string_view name) const {
    const auto found = find(name);
    return found ? found->get<T>() : std::nullopt;
  }

 private:
  bool is_container() const { return node_->kind == JsonKind::Array || node_->kind == JsonKind::Object; }
  template <typename Entry>
  JsonRange<Entry> range(JsonKind kind) const;

  const JsonNode* node_;
};

template <>
std::optional<bool> JsonValue::get() const;
template <>
std::optional<i64> JsonValue::get() const;
template <>
std::optional<u64> JsonValue::get() const;
template <>
std::optional<double> JsonValue::get() const;
template <>
std::optional<std::string_view> JsonValue::get() const;

struct JsonMember {
  explicit JsonMember(const JsonNode* node) : key(node->text, node->size), value(node + 1) {}
  std::string_view key;
  JsonValue value;
};

template <typename Entry>
class JsonRange {
 public:
  class Iterator {
   public:
    explicit Iterator(const JsonNode* at) : at_(at) {}
    Entry operator*() const { return Entry(at_); }
    Iterator& operator++() {
      at_ += at_->rows;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const JsonNode* at_;
  };

  JsonRange(const JsonNode* begin, const JsonNode* end) : begin_(begin), end_(end) {}
  Iterator begin() const { return begin_; }
  Iterator end() const { return end_; }

 private:
  Iterator begin_;
  Iterator end_;
};

template <typename Entry>
JsonRange<Entry> JsonValue::range(JsonKind kind) const {
  return {node_ + 1, node_ + (node_->kind == kind ? node_->rows : 1)};
}
inline JsonRange<JsonValue> JsonValue::items() const { return range<JsonValue>(JsonKind::Array); }
inline JsonRange<JsonMember> JsonValue::members() const { return range<JsonMember>(JsonKind::Object); }

/// The reason why a text is not read.
struct JsonFault {
  /// Number: a token that begins like a number and is none, or one that fits neither 64 bits nor a double.
  /// Memory: the values would take more than a parser may (parser_memory.hpp).
  enum class Kind { Utf8, Depth, Number, Memory, Syntax };
  Kind kind;
  std::string message;
  /// The first byte that is wrong, or that of the number; the end of the text where that comes too early.
  i64 offset = 0;

  /// Returns the sentence that follows the name of the file.
  std::string text() const { return kind == Kind::Memory ? message : "is not JSON: " + message; }
};

/// A parsed text. The values and their strings are valid as long as the document.
class JsonDocument {
 public:
  /// Parses `text`, which nests less than `max_depth` levels deep; empty containers do not count.
  JsonDocument(std::string_view text, std::size_t max_depth);

  const std::optional<JsonFault>& fault() const { return fault_; }
  /// Must not be called where there is a fault.
  JsonValue root() const { return JsonValue(nodes_.data()); }

 private:
  /// Strings are unescaped in place. A NUL ends it.
  std::vector<char> text_;
  std::vector<JsonNode> nodes_;
  std::optional<JsonFault> fault_;
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
