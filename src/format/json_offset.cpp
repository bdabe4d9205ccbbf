#include "format/json_offset.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

namespace glu_ckpt {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Where UTF-8 stops, or text.size().
std::size_t utf8_fault(std::string_view text) {
  // Each prefix of whole characters is valid, so the first that is not ends after the fault.
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (length > text.size() - at || !simdjson::validate_utf8(text.data() + at, length)) return at;
    at += length;
  }
  return text.size();
}

/// Reads JSON as strictly as simdjson does and stops where it is wrong.
class FaultFinder {
 public:
  FaultFinder(std::string_view text, JsonFault fault, std::size_t max_depth)
      : text_(text), fault_(fault), max_depth_(max_depth) {}

  std::size_t run() {
    while (step()) {
    }
    return at_;
  }

 private:
  enum class Expect { Value, FirstItem, FirstKey, Key, Colon, CommaOrEnd, Nothing };

  bool at_end() const { return at_ == text_.size(); }
  char here() const { return text_[at_]; }

  /// False at the fault, which `at_` then is.
  bool step() {
    while (!at_end() && is_blank(here())) ++at_;
    if (at_end()) return false;
    switch (expect_) {
      case Expect::FirstItem: return here() == ']' ? close() : value();
      case Expect::Value: return value();
      case Expect::FirstKey: return here() == '}' ? close() : key();
      case Expect::Key: return key();
      case Expect::Colon: return take(':', Expect::Value);
      case Expect::CommaOrEnd: return comma_or_end();
      case Expect::Nothing: return false;
    }
    return false;
  }

  bool take(char c, Expect next) {
    if (here() != c) return false;
    ++at_;
    expect_ = next;
    return true;
  }

  bool comma_or_end() {
    const bool in_object = open_.back() == '{';
    if (here() == (in_object ? '}' : ']')) return close();
    return take(',', in_object ? Expect::Key : Expect::Value);
  }

  bool open(Expect next) {
    // The document itself counts as a level for simdjson, an empty container does not.
    if (fault_ == JsonFault::Depth && open_.size() + 1 >= max_depth_ && !is_empty()) return false;
    open_.push_back(here());
    ++at_;
    expect_ = next;
    return true;
  }

  bool is_empty() const {
    std::size_t next = at_ + 1;
    while (next < text_.size() && is_blank(text_[next])) ++next;
    return next < text_.size() && text_[next] == (here() == '{' ? '}' : ']');
  }

  bool close() {
    ++at_;
    open_.pop_back();
    return end_value();
  }

  bool end_value() {
    expect_ = open_.empty() ? Expect::Nothing : Expect::CommaOrEnd;
    return true;
  }

  bool key() {
    if (!string()) return false;
    expect_ = Expect::Colon;
    return true;
  }

  bool value() {
    switch (here()) {
      case '{': return open(Expect::FirstKey);
      case '[': return open(Expect::FirstItem);
      case '"': return string() && end_value();
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      default: return number() && end_value();
    }
  }

  bool word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return end_value();
  }

  bool string() {
    if (here() != '"') return false;
    for (std::size_t at = at_ + 1; at < text_.size();) {
      const auto c = static_cast<unsigned char>(text_[at]);
      if (c == '"') {
        at_ = at + 1;
        return true;
      }
      const std::size_t taken = c == '\\' ? escape_bytes(at) : c < 0x20 ? 0 : 1;
      if (taken == 0) {
        at_ = at;
        return false;
      }
      at += taken;
    }
    at_ = text_.size();
    return false;
  }

  /// 0 for what is no escape.
  std::size_t escape_bytes(std::size_t at) const {
    const std::string_view after = text_.substr(at + 1, 1);
    if (after != "u") return !after.empty() && std::string_view("\"\\/bfnrt").find(after) != after.npos ? 2 : 0;
    const int code = code_unit(at);
    if (code < 0) return 0;
    if (code < 0xd800 || code > 0xdbff) return 6;
    const int low = code_unit(at + 6);
    return low >= 0xdc00 && low <= 0xdfff ? 12 : 0;
  }

  /// Of the \uXXXX there; -1 if there is none.
  int code_unit(std::size_t at) const {
    if (text_.size() < at + 6 || text_.substr(at, 2) != "\\u") return -1;
    unsigned code = 0;
    const char* const digits = text_.data() + at + 2;
    const auto [end, error] = std::from_chars(digits, digits + 4, code, 16);
    return error == std::errc() && end == digits + 4 ? static_cast<int>(code) : -1;
  }

  std::size_t digits_from(std::size_t at) const {
    while (at < text_.size() && is_digit(text_[at])) ++at;
    return at;
  }

  /// -, digits without a leading 0, fraction, exponent; of a size that 64 bits or a double hold.
  bool number() {
    const std::size_t first = at_ + (here() == '-' ? 1 : 0);
    std::size_t at = digits_from(first);
    if (at == first || (at > first + 1 && text_[first] == '0')) return false;
    bool whole = true;
    if (at < text_.size() && text_[at] == '.') {
      whole = false;
      const std::size_t end = digits_from(at + 1);
      if (end == at + 1) return false;
      at = end;
    }
    if (at < text_.size() && (text_[at] == 'e' || text_[at] == 'E')) {
      whole = false;
      const std::size_t sign = at + 1 < text_.size() && (text_[at + 1] == '-' || text_[at + 1] == '+') ? 1 : 0;
      const std::size_t end = digits_from(at + 1 + sign);
      if (end == at + 1 + sign) return false;
      at = end;
    }
    const std::string_view token = text_.substr(at_, at - at_);
    if (at < text_.size() && std::string_view(",]} \t\n\r").find(text_[at]) == std::string_view::npos) return false;
    if (whole ? !fits_integer(token) : std::isinf(std::strtod(std::string(token).c_str(), nullptr))) return false;
    at_ = at;
    return true;
  }

  static bool fits_integer(std::string_view token) {
    const char* const end = token.data() + token.size();
    i64 negative = 0;
    u64 positive = 0;
    return (token[0] == '-' ? std::from_chars(token.data(), end, negative).ec
                            : std::from_chars(token.data(), end, positive).ec) == std::errc();
  }

  std::string_view text_;
  JsonFault fault_;
  std::size_t max_depth_;
  std::size_t at_ = 0;
  Expect expect_ = Expect::Value;
  std::vector<char> open_;
};

/// Skips over parts of sound JSON; never past the end of any text.
class Skipper {
 public:
  explicit Skipper(std::string_view text) : text_(text) {}

  std::size_t at() const { return at_; }

  void blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }

  /// A string, a container with all that is in it, or another value.
  void value() {
    std::size_t depth = 0;
    do {
      blanks();
      if (at_ >= text_.size()) return;
      const char c = text_[at_];
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && depth > 0) --depth;
      if (c == '"')
        string();
      else if (std::string_view("{}[],:").find(c) != std::string_view::npos)
        ++at_;
      else
        word();
    } while (depth > 0);
  }

  /// Goes on from the start of a container to that member or item. False where there is none.
  bool enter(std::size_t number) {
    blanks();
    if (at_ >= text_.size() || (text_[at_] != '{' && text_[at_] != '[')) return false;
    const bool in_object = text_[at_++] == '{';
    for (std::size_t i = 0; i < number; ++i) {
      value();
      if (in_object) skip_colon_and_value();
      blanks();
      if (at_ >= text_.size() || text_[at_] != ',') return false;
      ++at_;
    }
    blanks();
    return at_ < text_.size();
  }

  /// From a key to its value; an item is its own value.
  void key(bool in_object) {
    if (!in_object) return;
    value();
    skip_colon();
  }

 private:
  void skip_colon() {
    blanks();
    if (at_ < text_.size()) ++at_;
    blanks();
  }

  void skip_colon_and_value() {
    skip_colon();
    value();
  }

  void string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    at_ = std::min(at_ + 1, text_.size());
  }

  void word() {
    while (at_ < text_.size() && !is_blank(text_[at_]) &&
           std::string_view("{}[],:\"").find(text_[at_]) == std::string_view::npos)
      ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

i64 json_fault_offset(std::string_view text, JsonFault fault, std::size_t max_depth) {
  if (fault == JsonFault::Utf8) return static_cast<i64>(utf8_fault(text));
  return static_cast<i64>(FaultFinder(text, fault, max_depth).run());
}

i64 json_offset(std::string_view text, std::initializer_list<std::size_t> steps) {
  Skipper skipper(text);
  skipper.blanks();
  bool in_object = false;
  for (const std::size_t* step = steps.begin(); step != steps.end(); ++step) {
    if (step != steps.begin()) skipper.key(in_object);
    in_object = skipper.at() < text.size() && text[skipper.at()] == '{';
    if (!skipper.enter(*step)) return static_cast<i64>(text.size());
  }
  return static_cast<i64>(skipper.at());
}

}  // namespace glu_ckpt
