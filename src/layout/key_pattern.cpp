#include "layout/key_pattern.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <set>
#include <utility>

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

/// The template of one part in one stack of layers.
struct PartRow {
  const Naming* naming = nullptr;
  const StackPrefix* stack = nullptr;
  ExpertSet set = ExpertSet::Routed;
  Experts experts = Experts::Indexed;
  Role role = Role::Gate;
  std::string_view part;
  /// The last word of `part`: `{K}`, `gate_up_proj{_K}`.
  std::string_view last;
};

/// One way for a key to end in a last component.
struct Ending {
  /// PartRow::last.
  std::string_view last;
  TensorKind kind = TensorKind::Weight;
  /// Naming::scale_word, where that is what scales are called.
  std::string_view own_word;
};

/// A template with one kind filled in is one of 15,000 patterns, and a checkpoint's keys end in few ways. So patterns
/// are made when a key first ends as they do: to make all of them took half of the time of `inspect` on a small
/// model.
class PatternTable {
 public:
  PatternTable() {
    for (const Naming& naming : namings())
      for (const StackPrefix& stack : naming.stacks) {
        add_rows(naming, stack, ExpertSet::Routed, Experts::Indexed);
        add_rows(naming, stack, ExpertSet::Routed, Experts::Grouped);
        add_rows(naming, stack, ExpertSet::Shared, Experts::Indexed);
      }
    std::set<std::pair<std::string_view, std::string_view>> known;
    for (const PartRow& row : rows_) {
      if (known.emplace(row.last, std::string_view()).second)
        for (const KindWords& words : kKindWords) add_ending({row.last, words.kind, {}});
      const std::string_view own_word = row.naming->scale_word;
      if (!own_word.empty() && has_word(row) && known.emplace(row.last, own_word).second)
        add_ending({row.last, TensorKind::Scale, own_word});
    }
  }

  std::vector<const KeyPattern*> match(const KeySkeleton& key) const {
    std::vector<const KeyPattern*> found;
    const auto bucket = by_last_.find(last_component(key.text));
    if (bucket == by_last_.end()) return found;
    std::call_once(bucket->second.made, [&] { make_patterns(bucket->second); });
    for (const KeyPattern& pattern : bucket->second.patterns)
      if (fits(key.text, pattern)) found.push_back(&pattern);
    return found;
  }

 private:
  struct Bucket {
    std::vector<Ending> endings;
    mutable std::once_flag made;
    mutable std::vector<KeyPattern> patterns;
  };

  static bool fits(std::string_view key, const KeyPattern& pattern) {
    if (!key.ends_with(pattern.skeleton)) return false;
    const std::size_t scope = key.size() - pattern.skeleton.size();
    if (scope == 0) return true;
    return key[scope - 1] == '/' || (!pattern.stack->anchored && key[scope - 1] == '.');
  }

  static bool has_word(const PartRow& row) { return row.part.find("{K}") != std::string_view::npos; }

  void add_rows(const Naming& naming, const StackPrefix& stack, ExpertSet set, Experts experts) {
    const PartNames& names = part_names(naming, set, experts);
    for (const Role role : {Role::GateUp, Role::Gate, Role::Up, Role::Down})
      if (const std::string_view part = part_template(names, role); !part.empty())
        rows_.push_back({&naming, &stack, set, experts, role, part, last_component(part)});
  }

  void add_ending(const Ending& ending) {
    by_last_[print_part(ending.last, ending.kind, "#", ending.own_word)].endings.push_back(ending);
  }

  void make_patterns(const Bucket& bucket) const {
    for (const PartRow& row : rows_)
      for (const Ending& ending : bucket.endings)
        if (ending.last == row.last) add(row, ending, bucket.patterns);
  }

  static void add(const PartRow& row, const Ending& ending, std::vector<KeyPattern>& patterns) {
    const Naming& naming = *row.naming;
    const StackPrefix& stack = *row.stack;
    const bool has_scale_word = ending.kind == TensorKind::Scale && has_word(row);
    if (!ending.own_word.empty() && (!has_scale_word || ending.own_word != naming.scale_word)) return;
    const std::string_view any_word = ending.own_word.empty() ? words_of(ending.kind).word : ending.own_word;
    const std::string_view scale_word = has_scale_word ? any_word : std::string_view();
    // Megatron holds no codes and scales, and `weight_scale_inv7` would be nobody's key.
    const bool quantized = ending.kind != TensorKind::Weight && ending.kind != TensorKind::Bias;
    const bool has_expert = row.part.find("{E}") != std::string_view::npos;
    if (quantized && naming.plain_fc1_is_fused) return;
    const std::string text = print_part(row.part, ending.kind, "#", scale_word);
    const std::string skeleton = print_stack(stack, "#", "#") + text;
    const std::size_t tail = has_expert ? text.size() - 1 - text.rfind('#') : 0;
    patterns.push_back({&naming, &stack, row.set, row.experts, row.role, ending.kind, skeleton, text.size(), tail,
                        has_expert, false, scale_word});
    if (naming.stacks_layers && stack.stack == "decoder" && !has_expert)
      patterns.push_back({&naming, &stack, row.set, row.experts, row.role, ending.kind,
                          std::string(stack.before) + text, text.size(), 0, false, true, scale_word});
  }

  /// In table order.
  std::vector<PartRow> rows_;
  std::map<std::string, Bucket, std::less<>> by_last_;
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

std::string print_key(const KeySkeleton& skeleton) {
  std::string key;
  auto number = skeleton.numbers.begin();
  for (const char c : skeleton.text) {
    if (c == '#' && number != skeleton.numbers.end())
      key += std::to_string(*number++);
    else
      key += c;
  }
  return key;
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
