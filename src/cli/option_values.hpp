#pragma once
/// Kinds of values: how what was typed is read into a field of the options, and the words that are offered.

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "cli/command_table.hpp"
#include "cli/options.hpp"
#include "core/parse_number.hpp"

namespace glu_ckpt::cli {

/// Returns the word that somebody may have meant who typed another one; nothing where none is near.
std::string nearest(const std::string& typed, const std::vector<std::string>& known);
/// "; did you mean X?", or nothing where nothing is near.
std::string suggestion(const std::string& typed, const std::vector<std::string>& known);
/// The same with up to three words.
std::string suggestions(const std::string& typed, std::vector<std::string> known);
/// Returns what is wrong with a value that must be one of those, or nothing.
std::string unknown_value(const std::string& typed, const std::vector<ValueWord>& known);

struct ValueKind {
  decltype(OptionRow::set) set;
  std::vector<ValueWord> words = {};
};

using GluField = std::optional<Glu>& (*)(Options&);
using NamingField = std::optional<std::string>& (*)(Options&);
using TextField = std::string& (*)(Options&);
using BytesField = i64& (*)(Options&);

/// An order of gate and up; "keep" is no answer. `in_help`: help lists the words.
ValueKind glu(GluField field, bool in_help = false);
/// A naming; "keep" is no answer. Throws UnknownNaming.
ValueKind naming(NamingField field);
/// "megatron", "hf:qwen3_moe", ...
ValueKind target();
/// A checkpoint that is read: find_input().
ValueKind checkpoint(TextField field);
/// A config.json, or the directory of a model that has one.
ValueKind config_file(TextField field);
/// Bytes, as parse_size() reads them; `least` is 1 or 1 MiB.
ValueKind size(BytesField field, i64 least = i64{1} << 20);
/// A range of experts, or a file that lists them; `grouping` takes those words, too.
ValueKind kept_experts();
ValueKind grouping_or_experts(ValueKind grouping);
/// "mtp", "vision", or both between commas.
ValueKind dropped_parts();
/// "5%", "2/8", and "1,8,64".
ValueKind percent();
ValueKind part();
ValueKind token_counts();

template <typename Field>
ValueKind flag(Field field) {
  return {[field](Options& options, const std::string&) {
    field(options) = true;
    return std::string();
  }};
}

/// Any text. `words` are offered to completions.
template <typename Field>
ValueKind text(Field field, std::initializer_list<const char*> words = {}) {
  ValueKind kind{[field](Options& options, const std::string& typed) {
    field(options) = typed;
    return std::string();
  }};
  for (const char* word : words) kind.words.push_back({word, "", false});
  return kind;
}

/// One of these words, and no other.
template <typename Field>
ValueKind one_of(Field field, const std::vector<std::string>& words) {
  ValueKind kind;
  for (const std::string& word : words) kind.words.push_back({word});
  kind.set = [field, known = kind.words](Options& options, const std::string& typed) {
    std::string fault = unknown_value(typed, known);
    if (fault.empty()) field(options) = typed;
    return fault;
  };
  return kind;
}

/// A word and the value that it stands for.
template <typename Value>
struct Choice {
  const char* word;
  Value value;
  const char* about = "";
};

template <typename Value, typename Field>
ValueKind choice(Field field, const std::vector<Choice<Value>>& choices, bool in_help = true) {
  ValueKind kind;
  for (const Choice<Value>& one : choices) kind.words.push_back({one.word, one.about, in_help});
  kind.set = [field, choices, known = kind.words](Options& options, const std::string& typed) {
    for (const Choice<Value>& one : choices)
      if (typed == one.word) field(options) = one.value;
    return unknown_value(typed, known);
  };
  return kind;
}

/// A number within bounds, for a field that may be optional.
template <typename Number, typename Field>
ValueKind number(Field field, Number least = std::numeric_limits<Number>::lowest(),
                 Number most = std::numeric_limits<Number>::max()) {
  return {[=](Options& options, const std::string& typed) {
    const auto found = parse_number<Number>(typed);
    if (!found || !(*found >= least && *found <= most))
      return std::is_integral_v<Number> ? fmt::format("'{}' is not a number from {} to {}", typed, least, most)
                                        : fmt::format("'{}' is not a number", typed);
    field(options) = *found;
    return std::string();
  }};
}

/// `text` itself, or the snapshot that it names in the local cache of Hugging Face: "Qwen/Qwen3-30B-A3B", or the
/// repository's directory there. Throws Usage for what is no path: "-", s3://..., https://...
std::string find_input(const std::string& text);

}  // namespace glu_ckpt::cli
