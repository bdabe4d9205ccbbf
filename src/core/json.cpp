#include "core/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/parser_memory.hpp"
#include "core/readable.hpp"

namespace glu_ckpt {
namespace {

/// Returns how many rows a text may have: no more than bytes, and what a parser may take.
std::size_t most_rows(std::size_t text_bytes) {
  const i64 allowed = parser_allowance(static_cast<i64>(text_bytes)) / static_cast<i64>(sizeof(JsonNode));
  return std::min(text_bytes + 1, static_cast<std::size_t>(allowed));
}

/// Reads the grammar of RFC 8259 and nothing else. Throws a JsonFault at the first byte that does not fit.
class JsonParser {
 public:
  /// A NUL follows `text`, so the next byte is looked at without a bound. Strings are unescaped in place.
  JsonParser(char* text, std::size_t bytes, std::size_t max_depth, std::vector<JsonNode>& nodes)
      : begin_(text), end_(text + bytes), at_(text), max_depth_(max_depth), nodes_(nodes) {}

  void run() {
    const std::string_view text(begin_, end_);
    if (text.starts_with("\xEF\xBB\xBF"))
      stop(JsonFault::Kind::Syntax, begin_,
           "begins with a byte order mark, which readers of JSON refuse: save it as UTF-8 without one");
    if (text.size() > std::numeric_limits<u32>::max())
      stop(JsonFault::Kind::Syntax, begin_, "is longer than 4 GiB, which is the most that is read");
    if (const std::size_t valid = utf8_prefix(text); valid < text.size())
      stop(JsonFault::Kind::Utf8, begin_ + valid, "expected UTF-8");
    next();
    value(here());
    next();
    if (at_ != end_) fail_expected("nothing more");
  }

 private:
  [[noreturn]] void stop(JsonFault::Kind kind, const char* at, std::string message) const {
    throw JsonFault{kind, std::move(message), at - begin_};
  }
  [[noreturn]] void fail_expected(std::string_view what) const {
    stop(JsonFault::Kind::Syntax, at_, fmt::format("expected {}{}", what, at_ == end_ ? ", but the text ends" : ""));
  }

  u32 here() const { return static_cast<u32>(at_ - begin_); }

  /// The next byte that is not blank; at the end of the text, the NUL.
  char next() {
    while (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t') ++at_;
    return *at_;
  }

  void grow() {
    const std::size_t most = most_rows(static_cast<std::size_t>(end_ - begin_));
    if (nodes_.size() >= most)
      stop(JsonFault::Kind::Memory, at_,
           "its values " + over_allowance(end_ - begin_, (std::ssize(nodes_) + 1) * i64{sizeof(JsonNode)}).value());
    nodes_.reserve(most);
  }

  JsonNode& add(JsonKind kind, u32 offset) {
    if (nodes_.size() == nodes_.capacity()) grow();
    JsonNode& node = nodes_.emplace_back();
    node.kind = kind;
    node.offset = offset;
    return node;
  }
  /// Makes all rows that were added since part of row `first`.
  void close(std::size_t first) { nodes_[first].rows = static_cast<u32>(nodes_.size() - first); }

  /// `offset` is where the value is said to begin.
  void value(u32 offset) {
    switch (next()) {
      case '{': return container(JsonKind::Object, '}', offset);
      case '[': return container(JsonKind::Array, ']', offset);
      case '"': return string(offset);
      case 't': return word("true", JsonKind::Bool, offset);
      case 'f': return word("false", JsonKind::Bool, offset);
      case 'n': return word("null", JsonKind::Null, offset);
      default: return number(offset);
    }
  }

  void container(JsonKind kind, char end, u32 offset) {
    const std::size_t first = nodes_.size();
    add(kind, offset);
    const char* const bracket = at_++;
    u32 size = 0;
    if (next() == end) {
      ++at_;
    } else {
      enter(bracket);
      do {
        kind == JsonKind::Object ? member() : item();
        ++size;
      } while (has_more(end));
      --depth_;
    }
    nodes_[first].size = size;
    close(first);
  }

  void enter(const char* bracket) {
    if (++depth_ < max_depth_) return;
    // A text that was cut off is said to be that, however deep it goes.
    const std::string_view text(begin_, end_);
    if (text[text.find_last_not_of(" \n\r\t")] != (nodes_[0].kind == JsonKind::Object ? '}' : ']')) {
      at_ = end_;
      fail_expected("its closing bracket");
    }
    stop(JsonFault::Kind::Depth, bracket, fmt::format("nests deeper than {} levels", max_depth_));
  }

  void item() {
    next();
    value(here());
  }

  void member() {
    if (next() != '"') fail_expected("a key in quotes");
    const std::size_t first = nodes_.size();
    const u32 offset = here();
    string(offset);
    if (next() != ':') fail_expected("':'");
    ++at_;
    value(offset);
    close(first);
  }

  /// Takes the byte after an item or member. False where it ends the container.
  bool has_more(char end) {
    const char c = next();
    if (c != ',' && c != end) fail_expected(end == '}' ? "',' or '}'" : "',' or ']'");
    ++at_;
    return c == ',';
  }

  void word(std::string_view word, JsonKind kind, u32 offset) {
    if (!std::string_view(at_, end_).starts_with(word)) fail_expected("a value");
    at_ += word.size();
    add(kind, offset).flag = word == "true";
  }

  void string(u32 offset) {
    const char* const begin = ++at_;
    skip_plain();
    char* out = at_;
    while (*at_ != '"') {
      if (*at_ != '\\') fail_expected(at_ == end_ ? "'\"'" : "no control character in a string");
      out = unescape(out);
      const char* const plain = at_;
      skip_plain();
      out = std::copy(plain, static_cast<const char*>(at_), out);
    }
    ++at_;
    JsonNode& node = add(JsonKind::String, offset);
    node.text = begin;
    node.size = static_cast<u32>(out - begin);
  }

  void skip_plain() {
    while (*at_ != '"' && *at_ != '\\' && static_cast<unsigned char>(*at_) >= 0x20) ++at_;
  }

  /// Writes what the escape stands for, which is shorter, and returns the end of that.
  char* unescape(char* out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    if (at_[1] == 'u') return unescape_code(out);
    const std::size_t number = kNames.find(at_[1]);
    if (number == kNames.npos) fail_expected("an escape");
    at_ += 2;
    *out = kMeant[number];
    return out + 1;
  }

  char* unescape_code(char* out) {
    unsigned code = code_unit(at_);
    std::size_t taken = 6;
    if (code >= 0xd800 && code <= 0xdbff) {
      const unsigned low = code_unit(at_ + taken);
      code = low >= 0xdc00 && low <= 0xdfff ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : kNoCode;
      taken = 12;
    } else if (code >= 0xdc00 && code <= 0xdfff) {
      code = kNoCode;
    }
    if (code == kNoCode) fail_expected("the escape of a character");
    at_ += taken;
    return put_utf8(code, out);
  }

  static constexpr unsigned kNoCode = ~0u;

  /// The number in the \uXXXX at `at`.
  unsigned code_unit(const char* at) const {
    if (!std::string_view(at, end_).starts_with("\\u") || end_ - at < 6) return kNoCode;
    unsigned code = 0;
    const auto [end, error] = std::from_chars(at + 2, at + 6, code, 16);
    return error == std::errc() && end == at + 6 ? code : kNoCode;
  }

  static char* put_utf8(unsigned code, char* out) {
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned kLead[] = {0, 0xc0, 0xe0, 0xf0};
    *out++ = static_cast<char>(kLead[more] | code >> (6 * more));
    for (int i = more - 1; i >= 0; --i) *out++ = static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
    return out;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  /// False where there is none.
  static bool skip_digits(char*& at) {
    const char* const first = at;
    while (is_digit(*at)) ++at;
    return at > first;
  }

  /// Minus, digits without a leading 0, fraction, exponent; the end of the text, a blank or another token follows.
  void number(u32 offset) {
    char* end = at_ + (*at_ == '-' ? 1 : 0);
    if (end == at_ && !is_digit(*end)) fail_expected("a value");
    bool valid = *end != '0' || !is_digit(end[1]);
    valid &= skip_digits(end);
    bool whole = true;
    if (*end == '.') {
      whole = false;
      valid &= skip_digits(++end);
    }
    if (*end == 'e' || *end == 'E') {
      whole = false;
      ++end;
      if (*end == '+' || *end == '-') ++end;
      valid &= skip_digits(end);
    }
    if (end < end_) valid &= std::string_view("{}[],: \n\r\t").find(*end) != std::string_view::npos;
    if (!valid) stop(JsonFault::Kind::Number, at_, "expected a number");
    whole ? whole_number(end, offset) : fraction(end, offset);
    at_ = end;
  }

  void whole_number(const char* end, u32 offset) {
    JsonNode& node = add(JsonKind::Integer, offset);
    if (std::from_chars(at_, end, node.integer).ec == std::errc()) return;
    node.kind = JsonKind::Unsigned;
    if (*at_ == '-' || std::from_chars(at_, end, node.natural).ec != std::errc())
      stop(JsonFault::Kind::Number, at_, "expected a number of at most 64 bits");
  }

  void fraction(const char* end, u32 offset) {
    if (std::from_chars(at_, end, add(JsonKind::Number, offset).number).ec != std::errc())
      stop(JsonFault::Kind::Number, at_, "expected a number that fits a double");
  }

  char* begin_;
  char* end_;
  char* at_;
  std::size_t max_depth_;
  std::size_t depth_ = 0;
  std::vector<JsonNode>& nodes_;
};

}  // namespace

template <>
std::optional<bool> JsonValue::get() const {
  return kind() == JsonKind::Bool ? std::optional(node_->flag) : std::nullopt;
}

template <>
std::optional<i64> JsonValue::get() const {
  return kind() == JsonKind::Integer ? std::optional(node_->integer) : std::nullopt;
}

template <>
std::optional<u64> JsonValue::get() const {
  if (kind() == JsonKind::Unsigned) return node_->natural;
  return kind() == JsonKind::Integer && node_->integer >= 0 ? std::optional(static_cast<u64>(node_->integer))
                                                            : std::nullopt;
}

template <>
std::optional<double> JsonValue::get() const {
  switch (kind()) {
    case JsonKind::Integer: return static_cast<double>(node_->integer);
    case JsonKind::Unsigned: return static_cast<double>(node_->natural);
    case JsonKind::Number: return node_->number;
    default: return std::nullopt;
  }
}

template <>
std::optional<std::string_view> JsonValue::get() const {
  return kind() == JsonKind::String ? std::optional(std::string_view(node_->text, node_->size)) : std::nullopt;
}

std::optional<JsonValue> JsonValue::find(std::string_view name) const {
  std::optional<JsonValue> found;
  for (const auto& [key, value] : members())
    if (key == name) found = value;
  return found;
}

JsonDocument::JsonDocument(std::string_view text, std::size_t max_depth) {
  text_.reserve(text.size() + 1);
  text_.assign(text.begin(), text.end());
  text_.push_back('\0');
  // Headers and indices have a row for 10 to 50 bytes. Those of a long text are not moved once more, which would need
  // room for both: memory that is reserved and not touched costs nothing.
  constexpr std::size_t kLong = std::size_t{1} << 20;
  nodes_.reserve(text.size() < kLong ? text.size() / 8 + 1 : most_rows(text.size()));
  try {
    JsonParser(text_.data(), text.size(), max_depth, nodes_).run();
  } catch (JsonFault& fault) {
    fault_ = std::move(fault);
    if (const std::string_view what = stand_in_text(text, Meant::Text); !what.empty()) fault_->message = what;
  }
}

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
        } else if (const std::size_t bytes = utf8_character(text.substr(i)); bytes > 0) {
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
