#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "adapters/adapter_layout.hpp"
#include "core/config_json.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "format/model_config.hpp"

namespace glu_ckpt {
namespace {

constexpr std::size_t kMaxLaidDepth = 16;

using Pattern = std::vector<std::pair<std::string, double>>;

std::string_view last_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::string number_text(double number) {
  return number == std::floor(number) && std::abs(number) < 1e15 ? fmt::format("{}", static_cast<i64>(number))
                                                                 : fmt::format("{}", number);
}

/// The value of each module that is not the usual one: by the last word of its name where all modules that end so have
/// it, else by the whole name.
Pattern pattern_of(const std::vector<LaidModule>& modules, double usual, double (*value)(const LaidModule&)) {
  std::map<std::string_view, std::set<double>> by_word;
  for (const LaidModule& module : modules) by_word[last_word(module.name)].insert(value(module));
  Pattern pattern;
  std::set<std::string_view> written;
  for (const LaidModule& module : modules) {
    const double own = value(module);
    if (own == usual) continue;
    const std::string_view word = last_word(module.name);
    if (by_word[word].size() > 1)
      pattern.emplace_back(module.name, own);
    else if (written.insert(word).second)
      pattern.emplace_back(word, own);
  }
  return pattern;
}

std::string pattern_text(const Pattern& pattern) {
  if (pattern.empty()) return "{}";
  std::string text;
  for (const auto& [key, value] : pattern)
    text += fmt::format("{}\n    {}: {}", text.empty() ? "{" : ",", json_string(key), number_text(value));
  return text + "\n  }";
}

template <typename Names>
std::string list_text(const Names& names) {
  if (names.empty()) return "[]";
  std::string text;
  for (const auto& name : names) text += fmt::format("{}\n    {}", text.empty() ? "[" : ",", json_string(name));
  return text + "\n  ]";
}

}  // namespace

std::string laid_config(const std::string& text, const AdapterConfig& config, const LaidAdapter& laid) {
  std::map<std::string, std::string, std::less<>> fields;
  const auto is_usual = [&](const LaidModule& module) {
    return module.rank == config.rank && module.alpha == config.alpha;
  };
  const bool is_kept = laid.modules.empty() || std::ranges::any_of(laid.modules, is_usual);
  const i64 rank = is_kept ? config.rank : laid.modules.front().rank;
  const double alpha = is_kept ? config.alpha : laid.modules.front().alpha;
  fields["r"] = fmt::format("{}", rank);
  fields["lora_alpha"] = number_text(alpha);
  fields["rank_pattern"] =
      pattern_text(pattern_of(laid.modules, static_cast<double>(rank),
                              [](const LaidModule& module) { return static_cast<double>(module.rank); }));
  fields["alpha_pattern"] =
      pattern_text(pattern_of(laid.modules, alpha, [](const LaidModule& module) { return module.alpha; }));
  std::set<std::string_view> words;
  for (const LaidModule& module : laid.modules)
    if (!module.is_packed) words.insert(last_word(module.name));
  fields["target_modules"] = list_text(words);
  if (!laid.parameters.empty() || !config.target_parameters.empty())
    fields["target_parameters"] = laid.parameters.empty() ? "null" : list_text(laid.parameters);
  if (laid.forgets_rslora) fields["use_rslora"] = "false";
  // PEFT has no dropout of packed experts.
  if (!laid.parameters.empty()) fields["lora_dropout"] = "0.0";
  const std::string strict = without_python_numbers(text);
  const JsonDocument document(strict, kMaxLaidDepth);
  std::string written;
  const auto put = [&](std::string_view key, std::string_view value) {
    written += fmt::format("{}\n  {}: {}", written.empty() ? "{" : ",", json_string(key), value);
  };
  for (const JsonMember member : document.root().members()) {
    if (const auto own = fields.find(member.key); own != fields.end()) {
      put(member.key, own->second);
      fields.erase(own);
      continue;
    }
    const TextRange range = json_value_range(strict, static_cast<std::size_t>(member.value.offset()));
    std::string_view value = std::string_view(text).substr(range.begin, range.end - range.begin);
    value.remove_prefix(std::min(value.find_first_not_of(" \t\r\n"), value.size()));
    put(member.key, value);
  }
  for (const auto& [key, value] : fields) put(key, value);
  return written + "\n}\n";
}

}  // namespace glu_ckpt
