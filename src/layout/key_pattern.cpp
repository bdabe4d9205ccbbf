#include "layout/key_pattern.hpp"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "core/fail.hpp"
#include "layout/tensor_kinds.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMaxDigits = 9;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Returns whether digits at [begin, end) of `key` are a number by the rule in the header.
bool is_number(std::string_view key, std::size_t begin, std::size_t end) {
  if (end - begin > kMaxDigits) return false;
  if (key[begin] == '0' && end - begin > 1) return false;
  const std::size_t dot = key.rfind('.', begin);
  const std::size_t start = dot == std::string_view::npos ? 0 : dot + 1;
  const std::string_view before = key.substr(start, begin - start);
  if (before == "weight" || before == "bias") return true;
  return before.empty() && (end == key.size() || key[end] == '.');
}

std::string replace(std::string text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, what.size(), with);
  return text;
}

std::string_view last_component(std::string_view text) {
  const std::size_t dot = text.rfind('.');
  return dot == std::string_view::npos ? text : text.substr(dot + 1);
}

class PatternTable {
 public:
  PatternTable() {
    for (const Naming& naming : namings())
      for (const StackPrefix& stack : naming.stacks) {
        add_parts(naming, stack, ExpertSet::Routed, Experts::Indexed);
        add_parts(naming, stack, ExpertSet::Routed, Experts::Grouped);
        add_parts(naming, stack, ExpertSet::Shared, Experts::Indexed);
      }
    for (const KeyPattern& pattern : patterns_) by_last_[last_component(pattern.skeleton)].push_back(&pattern);
  }

  std::vector<const KeyPattern*> match(const KeySkeleton& key) const {
    std::vector<const KeyPattern*> found;
    const auto bucket = by_last_.find(last_component(key.text));
    if (bucket == by_last_.end()) return found;
    for (const KeyPattern* pattern : bucket->second)
      if (fits(key.text, *pattern)) found.push_back(pattern);
    return found;
  }

 private:
  static bool fits(std::string_view key, const KeyPattern& pattern) {
    if (!key.ends_with(pattern.skeleton)) return false;
    const std::size_t scope = key.size() - pattern.skeleton.size();
    if (scope == 0) return true;
    return key[scope - 1] == '/' || (!pattern.stack->anchored && key[scope - 1] == '.');
  }

  void add_parts(const Naming& naming, const StackPrefix& stack, ExpertSet set, Experts experts) {
    const PartNames& names = part_names(naming, set, experts);
    for (const Role role : {Role::GateUp, Role::Gate, Role::Up, Role::Down})
      for (const KindWords& words : kKindWords) {
        const std::string_view part = part_template(names, role);
        const bool has_word = words.kind == TensorKind::Scale && part.find("{K}") != std::string_view::npos;
        add(naming, stack, set, experts, role, words.kind, part, has_word ? words.word : std::string_view());
        if (has_word && !naming.scale_word.empty())
          add(naming, stack, set, experts, role, words.kind, part, naming.scale_word);
      }
  }

  void add(const Naming& naming, const StackPrefix& stack, ExpertSet set, Experts experts, Role role, TensorKind kind,
           std::string_view part, std::string_view scale_word) {
    // Megatron holds no codes and scales, and `weight_scale_inv7` would be nobody's key.
    const bool quantized = kind != TensorKind::Weight && kind != TensorKind::Bias;
    const bool has_expert = part.find("{E}") != std::string_view::npos;
    if (part.empty() || (quantized && naming.plain_fc1_is_fused)) return;
    const std::string text = print_part(part, kind, "#", scale_word);
    const std::string skeleton = print_stack(stack, "#", "#") + text;
    const std::size_t tail = has_expert ? text.size() - 1 - text.rfind('#') : 0;
    patterns_.push_back(
        {&naming, &stack, set, experts, role, kind, skeleton, text.size(), tail, has_expert, false, scale_word});
    if (naming.stacks_layers && stack.stack == "decoder" && !has_expert)
      patterns_.push_back({&naming, &stack, set, experts, role, kind, std::string(stack.before) + text, text.size(), 0,
                           false, true, scale_word});
  }

  std::vector<KeyPattern> patterns_;
  std::unordered_map<std::string_view, std::vector<const KeyPattern*>> by_last_;
};

const PatternTable& pattern_table() {
  static const PatternTable table;
  return table;
}

}  // namespace

void skeletonize(std::string_view key, KeySkeleton& skeleton) {
  skeleton.text.clear();
  skeleton.numbers.clear();
  skeleton.widths.clear();
  for (std::size_t at = 0; at < key.size();) {
    const std::size_t digits = std::min(key.size(), key.find_first_of("0123456789", at));
    skeleton.text += key.substr(at, digits - at);
    std::size_t end = digits;
    while (end < key.size() && is_digit(key[end])) ++end;
    if (digits < end && is_number(key, digits, end)) {
      i64 number = 0;
      std::from_chars(key.data() + digits, key.data() + end, number);
      skeleton.numbers.push_back(number);
      skeleton.widths.push_back(static_cast<int>(end - digits));
      skeleton.text += '#';
    } else {
      skeleton.text += key.substr(digits, end - digits);
    }
    at = end;
  }
}

KeySkeleton skeletonize(std::string_view key) {
  KeySkeleton skeleton;
  skeletonize(key, skeleton);
  return skeleton;
}

std::vector<const KeyPattern*> match_patterns(const KeySkeleton& skeleton) { return pattern_table().match(skeleton); }

ExpertPart find_expert_part(std::string_view key, const KeyPattern& pattern) {
  if (!pattern.has_expert) return {key.size() - pattern.part_size, 0};
  const std::size_t end = key.size() - pattern.tail_size;
  std::size_t begin = end;
  while (begin > 0 && is_digit(key[begin - 1])) --begin;
  i64 expert = 0;
  std::from_chars(key.data() + begin, key.data() + end, expert);
  // The pattern has one character where the key has the expert's digits.
  return {key.size() - pattern.part_size - (end - begin - 1), expert};
}

KeyParts parse_key(std::string_view key, const KeySkeleton& skeleton, const KeyPattern& pattern) {
  const bool nested = pattern.stack->nested;
  const std::size_t used = (pattern.has_expert ? 1u : 0u) + (pattern.stacked_layers ? 0u : 1u) + (nested ? 1u : 0u);
  const std::size_t first = skeleton.numbers.size() - used;
  std::size_t more_digits = 0;
  for (std::size_t i = first; i < skeleton.numbers.size(); ++i)
    more_digits += static_cast<std::size_t>(skeleton.widths[i] - 1);
  KeyParts parts;
  parts.scope = key.substr(0, key.size() - pattern.skeleton.size() - more_digits);
  parts.stack = nested ? fmt::format("{}.{}", pattern.stack->stack, skeleton.numbers[first]) : pattern.stack->stack;
  if (!pattern.stacked_layers) parts.layer = skeleton.numbers[first + (nested ? 1 : 0)];
  return parts;
}

std::string print_part(std::string_view part_template, TensorKind kind, std::string_view expert,
                       std::string_view scale_word) {
  std::string text(part_template);
  text = replace(std::move(text), "{E}", expert);
  const bool is_own = kind == TensorKind::Scale && !scale_word.empty();
  text = replace(std::move(text), "{K}", is_own ? scale_word : words_of(kind).word);
  return replace(std::move(text), "{_K}", words_of(kind).suffix);
}

}  // namespace glu_ckpt
