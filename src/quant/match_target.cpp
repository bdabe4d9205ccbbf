#include "quant/match_target.hpp"

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

namespace glu_ckpt {
namespace {

constexpr std::size_t kMostPatternBytes = 256;

/// A step of a pattern: of the characters in `chars` one is read, or both ways are tried.
struct PatternStep {
  enum class Kind { Char, Fork, Begin, End, Match };
  Kind kind = Kind::Match;
  std::bitset<256> chars;
  std::size_t next = 0;
  std::size_t other = 0;
};

/// Reads a pattern from its end to its beginning in effect: each part is made with the step that follows it.
class PatternParser {
 public:
  explicit PatternParser(std::string_view text) : text_(text) { steps_.emplace_back(); }

  /// The first step; none where the pattern is not known here.
  std::optional<std::size_t> parse() {
    const std::size_t first = alternatives(0);
    return failed_ || at_ != text_.size() ? std::nullopt : std::optional(first);
  }

  const std::vector<PatternStep>& steps() const { return steps_; }

 private:
  using Kind = PatternStep::Kind;

  bool has(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char c) { return has(c) ? (++at_, true) : false; }

  std::size_t add(PatternStep step) {
    steps_.push_back(step);
    return steps_.size() - 1;
  }
  std::size_t fork(std::size_t one, std::size_t other) { return add({Kind::Fork, {}, one, other}); }

  /// Parts are read from left to right and made from right to left: first it is seen where each ends.
  std::size_t alternatives(std::size_t next) {
    std::size_t first = sequence(next);
    while (!failed_ && take('|')) first = fork(first, sequence(next));
    return first;
  }

  std::size_t sequence(std::size_t next) {
    std::vector<std::size_t> begins;
    while (!failed_ && at_ < text_.size() && !has('|') && !has(')')) {
      begins.push_back(at_);
      skip_piece();
    }
    const std::size_t end = at_;
    for (auto begin = begins.rbegin(); begin != begins.rend() && !failed_; ++begin) {
      at_ = *begin;
      next = piece(next);
    }
    at_ = end;
    return next;
  }

  /// Finds the end by the brackets alone, so that what is in them is not read once more for each of them. What is
  /// broken inside is seen when the piece is made.
  void skip_piece() {
    int open = 0;
    do {
      if (has('['))
        skip_class();
      else if (take('\\'))
        ++at_;
      else
        open += bracket();
    } while (open > 0 && at_ < text_.size());
    if (open > 0 || at_ > text_.size()) failed_ = true;
    if (take('*') || take('+') || take('?')) take('?');
  }

  /// Passes a character: 1 where it opens a group, -1 where it closes one.
  int bracket() {
    const char c = text_[at_++];
    return c == '(' ? 1 : c == ')' ? -1 : 0;
  }

  /// A bracket that closes does not where it is the first character.
  void skip_class() {
    ++at_;
    take('^');
    do at_ += has('\\') ? 2 : 1;
    while (at_ < text_.size() && !has(']'));
    ++at_;
  }

  std::size_t piece(std::size_t next) {
    const std::size_t begin = at_;
    // If the part repeats, a fork follows it, which has to be there first.
    const std::size_t loop = fork(next, next);
    const std::size_t first = atom(loop);
    const char repeat = at_ < text_.size() ? text_[at_] : '\0';
    if (repeat == '*' || repeat == '+') {
      ++at_;
      take('?');
      steps_[loop].other = first;
      return repeat == '*' ? loop : first;
    }
    if (repeat == '?') {
      ++at_;
      take('?');
      return fork(first, next);
    }
    if (repeat == '{' || begin == at_) failed_ = true;
    return first;
  }

  std::size_t atom(std::size_t next) {
    if (take('(')) {
      if (take('?') && !take(':')) failed_ = true;
      // kMostPatternBytes bounds how deep groups lie in groups.
      const std::size_t first = failed_ ? next : alternatives(next);
      if (!take(')')) failed_ = true;
      return first;
    }
    if (take('^')) return add({Kind::Begin, {}, next, 0});
    if (take('$')) return add({Kind::End, {}, next, 0});
    PatternStep step{Kind::Char, {}, next, 0};
    if (take('.'))
      step.chars = any_but_newline();
    else if (take('['))
      step.chars = char_class();
    else
      step.chars = one_char();
    return add(step);
  }

  static std::bitset<256> any_but_newline() { return ~std::bitset<256>().set('\n'); }

  std::bitset<256> one_char() {
    std::bitset<256> chars;
    if (at_ >= text_.size() || std::string_view("*+?{)").find(text_[at_]) != std::string_view::npos)
      return failed(chars);
    const char c = text_[at_++];
    if (c != '\\') return chars.set(static_cast<std::uint8_t>(c));
    if (at_ >= text_.size()) return failed(chars);
    const char escaped = text_[at_++];
    const auto set_range = [&](char from, char to) {
      for (auto one = static_cast<std::uint8_t>(from); one <= static_cast<std::uint8_t>(to); ++one) chars.set(one);
    };
    if (escaped == 'd' || escaped == 'w') set_range('0', '9');
    if (escaped == 'w') {
      set_range('a', 'z');
      set_range('A', 'Z');
      chars.set('_');
    }
    if (chars.any()) return chars;
    const bool is_letter =
        (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z') || (escaped >= '0' && escaped <= '9');
    return is_letter ? failed(chars) : chars.set(static_cast<std::uint8_t>(escaped));
  }

  std::bitset<256> char_class() {
    std::bitset<256> chars;
    const bool inverts = take('^');
    bool is_first = true;
    while (at_ < text_.size() && (is_first || !has(']'))) {
      is_first = false;
      const bool escapes = has('\\');
      const auto from = static_cast<std::uint8_t>(text_[at_]);
      const std::bitset<256> one = escapes ? one_char() : std::bitset<256>().set(from);
      if (!escapes) ++at_;
      chars |= one;
      const bool is_range = !escapes && has('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!is_range) continue;
      const auto to = static_cast<std::uint8_t>(text_[at_ + 1]);
      if (to == '\\' || to < from) return failed(chars);
      for (unsigned c = from; c <= to; ++c) chars.set(c);
      at_ += 2;
    }
    if (!take(']')) failed_ = true;
    return inverts ? ~chars : chars;
  }

  std::bitset<256> failed(const std::bitset<256>& chars) {
    failed_ = true;
    return chars;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool failed_ = false;
  std::vector<PatternStep> steps_;
};

/// Follows all ways at once, so that no pattern takes more time than its length for each character.
class PatternRun {
 public:
  PatternRun(const std::vector<PatternStep>& steps, std::string_view text) : steps_(steps), text_(text) {}

  bool run(std::size_t first) {
    std::vector<std::size_t> now;
    for (std::size_t at = 0; at <= text_.size(); ++at) {
      std::vector<std::size_t> reached;
      seen_.assign(steps_.size(), false);
      if (at == 0) add(first, at, reached);
      for (const std::size_t step : now)
        if (steps_[step].chars.test(static_cast<std::uint8_t>(text_[at - 1]))) add(steps_[step].next, at, reached);
      if (matched_ || reached.empty()) break;
      now = std::move(reached);
    }
    return matched_;
  }

 private:
  void add(std::size_t first, std::size_t at, std::vector<std::size_t>& reached) {
    std::vector<std::size_t> left = {first};
    while (!left.empty()) {
      const std::size_t number = left.back();
      left.pop_back();
      if (seen_[number]) continue;
      seen_[number] = true;
      const PatternStep& step = steps_[number];
      switch (step.kind) {
        case PatternStep::Kind::Char: reached.push_back(number); break;
        case PatternStep::Kind::Fork:
          left.push_back(step.next);
          left.push_back(step.other);
          break;
        case PatternStep::Kind::Begin:
          if (at == 0) left.push_back(step.next);
          break;
        case PatternStep::Kind::End:
          if (at == text_.size()) left.push_back(step.next);
          break;
        case PatternStep::Kind::Match: matched_ = true; break;
      }
    }
  }

  const std::vector<PatternStep>& steps_;
  std::string_view text_;
  std::vector<bool> seen_;
  bool matched_ = false;
};

}  // namespace

struct Pattern {
  std::vector<PatternStep> steps;
  std::size_t first = 0;

  bool matches(std::string_view text) const { return PatternRun(steps, text).run(first); }
};

namespace {

std::shared_ptr<const Pattern> read_pattern(std::string_view text) {
  if (text.size() > kMostPatternBytes) return nullptr;
  PatternParser parser(text);
  const std::optional<std::size_t> first = parser.parse();
  return first ? std::make_shared<const Pattern>(Pattern{parser.steps(), *first}) : nullptr;
}

}  // namespace

std::optional<bool> matches_pattern(std::string_view pattern, std::string_view text) {
  const auto read = read_pattern(pattern);
  return read ? std::optional(read->matches(text)) : std::nullopt;
}

ModuleTarget::ModuleTarget(std::string_view text) : text_(text) {
  constexpr std::string_view kPattern = "re:";
  is_pattern_ = text.starts_with(kPattern);
  if (is_pattern_) pattern_ = read_pattern(text.substr(kPattern.size()));
}

std::optional<bool> ModuleTarget::names(std::string_view module) const {
  if (!is_pattern_) return text_ == module;
  return pattern_ ? std::optional(pattern_->matches(module)) : std::nullopt;
}

}  // namespace glu_ckpt
