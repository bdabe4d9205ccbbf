#include "cli/option_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "cli/options.hpp"
#include "core/checked_math.hpp"
#include "core/fail.hpp"
#include "core/parse_number.hpp"

namespace glu_ckpt::cli {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string u64_fault(const std::string& text) {
  if (parse_number<u64>(text)) return {};
  return "'" + text + "' is not a number from 0 to 2^64 - 1";
}

double parse_percent(const std::string& text) {
  const bool has_sign = text.ends_with('%');
  const auto percent = parse_number<double>(std::string_view(text).substr(0, text.size() - (has_sign ? 1 : 0)));
  if (percent && *percent > 0 && *percent < 1 && !has_sign)
    fail(ErrorCode::Usage, {}, "--sample: '{}' may mean {}% or {}%; say which, with the %", text, text, 100 * *percent);
  if (!percent || !(*percent > 0 && *percent <= 100))
    fail(ErrorCode::Usage, {}, "--sample: '{}' is no share such as 5% or 0.1%, more than 0 and at most 100%", text);
  return *percent;
}

std::pair<i64, i64> parse_part(const std::string& text) {
  const std::string_view whole = text;
  const std::size_t slash = std::min(whole.find('/'), whole.size() - 1);
  const auto part = parse_number<i64>(whole.substr(0, slash)), parts = parse_number<i64>(whole.substr(slash + 1));
  if (whole[slash] != '/' || !part || !parts || *part < 1 || *part > *parts)
    fail(ErrorCode::Usage, {}, "--part: '{}' is no part such as 2/8, from 1/8 to 8/8", text);
  return {*part, *parts};
}

std::string suggestion(const std::string& typed, const std::vector<std::string>& known) {
  std::string best;
  // Dashes are no letters that somebody mistypes.
  const std::size_t letters = typed.size() - std::min(typed.size(), typed.find_first_not_of('-'));
  std::size_t least = letters / 3 + 2;
  for (const std::string& word : known)
    if (const std::size_t distance = edit_distance(typed, word); distance < least) {
      least = distance;
      best = word;
    }
  // The typed word may be the beginning of a longer one.
  constexpr std::size_t kLeastLetters = 3;
  if (best.empty() && letters >= kLeastLetters)
    for (const std::string& word : known)
      if (word.starts_with(typed) && (best.empty() || word.size() < best.size())) best = word;
  return best.empty() ? "" : "; did you mean " + best + "?";
}

const std::vector<ValueWord> kGluWords = {
    {"split", "gate and up as two tensors"},
    {"contiguous", "all gate rows, then all up rows"},
    {"interleaved:32", "32 gate rows, 32 up rows and so on; or any other number"},
};

const std::vector<ValueWord> kExpertsWords = {
    {"indexed", "one tensor per expert"},
    {"grouped", "one tensor with a leading expert axis"},
    {"keep", "as in SRC"},
};

std::vector<ValueWord> hidden(std::vector<ValueWord> words) {
  for (ValueWord& value : words) value.in_help = false;
  return words;
}

const std::vector<ValueWord>& naming_words() {
  static const std::vector<ValueWord> kWords = [] {
    std::set<std::string> names;
    for (const NamingSummary& row : naming_summaries()) {
      names.insert(row.name);
      for (const std::string& type : row.model_types) names.insert("hf:" + type);
    }
    std::vector<ValueWord> words;
    words.reserve(names.size());
    for (const std::string& name : names) words.push_back({name, "", false});
    return words;
  }();
  return kWords;
}

std::vector<ValueWord> target_words() {
  std::vector<ValueWord> words = {{"megatron", "Megatron-Core: torch_dist, and the arguments that it needs"},
                                  {"hf", "transformers: the family that SRC came from, or hf:<model_type>"},
                                  {"torchtitan", "torchtitan: torch.distributed.checkpoint"}};
  for (const ValueWord& naming : naming_words())
    if (naming.word.starts_with("hf:")) words.push_back(naming);
  return words;
}

std::vector<std::string> plain(const std::vector<ValueWord>& words) {
  std::vector<std::string> out;
  out.reserve(words.size());
  for (const ValueWord& value : words) out.push_back(value.word);
  return out;
}

std::string unknown_value(const std::string& typed, const std::vector<std::string>& known) {
  if (std::ranges::find(known, typed) != known.end()) return {};
  const std::string near = suggestion(typed, known);
  return fmt::format("'{}' is not one of {}{}", typed, fmt::join(known, ", "), near);
}

std::string glu_fault(const std::string& typed) {
  if (typed.empty() || typed == "keep") return {};
  try {
    parse_glu(typed);
    return {};
  } catch (const Error& error) {
    return error.what() + suggestion(typed, plain(kGluWords));
  }
}

std::string target_fault(const std::string& typed) {
  if (typed.empty()) return "--to is empty; megatron, torchtitan, hf and hf:<model_type> are targets";
  const std::vector<std::string> known = plain(target_words());
  if (typed.starts_with("hf:") || std::ranges::find(known, typed) != known.end()) return {};
  return fmt::format("'{}' is no target; megatron, torchtitan, hf and hf:<model_type> are{}", typed,
                     suggestion(typed, known));
}

i64 parse_size(std::string_view option, const std::string& text) {
  struct Unit {
    std::string_view name;
    i64 bytes;
  };
  static constexpr Unit kUnits[] = {
      {"", 1},
      {"B", 1},
      {"K", 1LL << 10},
      {"KiB", 1LL << 10},
      {"KB", 1'000},
      {"M", 1LL << 20},
      {"MiB", 1LL << 20},
      {"MB", 1'000'000},
      {"G", 1LL << 30},
      {"GiB", 1LL << 30},
      {"GB", 1'000'000'000},
      {"T", 1LL << 40},
      {"TiB", 1LL << 40},
      {"TB", 1'000'000'000'000},
  };
  i64 number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error == std::errc() && number >= 0)
    for (const Unit& known : kUnits)
      if (known.name == unit)
        if (const auto bytes = checked_mul(number, known.bytes)) return *bytes;
  fail(ErrorCode::Usage, {}, "{}: '{}' is not a size; say for example 512MiB or 5GB", option, text);
}

}  // namespace glu_ckpt::cli
