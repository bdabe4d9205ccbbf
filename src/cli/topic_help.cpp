#include "cli/topic_help.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "cli/error_help.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt::cli {
namespace {

/// An option with the commands that take it under one meaning.
struct OptionTopic {
  const OptionRow* row = nullptr;
  std::vector<std::string> commands = {};
};

/// Values of one meaning, and the options that take them.
struct ValueTopic {
  std::string meaning;
  std::vector<std::string> words = {};
  std::vector<std::string> options = {};
};

bool is_whole_program(const CommandTable& command) { return command_words(command).empty(); }

void add_once(std::vector<std::string>& list, const std::string& word) {
  if (std::ranges::find(list, word) == list.end()) list.push_back(word);
}

/// "pad-experts" is --pad-experts.
bool is_name_of(const OptionRow& row, const std::string& word) {
  if (row.long_name.empty() || word.empty()) return false;
  return row.long_name == word || row.short_name == word || row.long_name == "--" + word;
}

/// "interleaved:4" without its number: what stands before it is a word of which any number may follow.
std::string without_number(const std::string& word) {
  const std::size_t colon = word.rfind(':');
  const bool is_number =
      colon != word.npos && colon + 1 < word.size() && word.find_first_not_of("0123456789", colon + 1) == word.npos;
  return is_number ? word.substr(0, colon) : word;
}

/// "interleaved" and "interleaved:4" are interleaved:32, "fp8" all that begin with it, and "qwen3_moe" hf:qwen3_moe.
bool is_name_of(const ValueWord& value, const std::string& word) {
  return value.word == word || value.word.starts_with(without_number(word) + ":") || value.word == "hf:" + word;
}

void add_option(std::vector<OptionTopic>& topics, const OptionRow& row, const std::string& command) {
  const auto alike = std::ranges::find_if(topics, [&](const OptionTopic& topic) {
    return topic.row->long_name == row.long_name && topic.row->about == row.about;
  });
  OptionTopic& topic = alike == topics.end() ? topics.emplace_back(OptionTopic{&row}) : *alike;
  add_once(topic.commands, command);
}

struct FoundTopics {
  std::vector<OptionTopic> options;
  std::vector<ValueTopic> values;
  /// The options that take the word as a name of something that has its own table.
  std::vector<std::string> takers;
};

FoundTopics find_topics(const CommandTable& command, const std::string& word) {
  FoundTopics found;
  for (const CommandTable* one : all_commands(command)) {
    const std::string name = is_whole_program(*one) ? one->name : command_words(*one);
    for (const OptionRow* row : all_options(*one)) {
      if (is_name_of(*row, word)) add_option(found.options, *row, name);
      for (const ValueWord& value : row->words) {
        if (!is_name_of(value, word)) continue;
        if (!value.in_help && value.about.empty()) {
          if (value.word == word || value.word == "hf:" + word) add_once(found.takers, row->long_name);
          continue;
        }
        const std::string& meaning = value.about.empty() ? row->about : value.about;
        const auto alike = std::ranges::find(found.values, meaning, &ValueTopic::meaning);
        ValueTopic& topic = alike == found.values.end() ? found.values.emplace_back(ValueTopic{meaning}) : *alike;
        add_once(topic.words, value.word);
        add_once(topic.options, row->long_name);
      }
    }
  }
  return found;
}

/// A term, and its meaning below it.
void add_meaning(std::string& out, const std::string& term, std::string_view meaning) {
  out += out.empty() ? "" : "\n";
  append_wrapped(out, 0, term);
  append_wrapped(out, 2, meaning);
}

/// `names` are parted by commas.
bool is_one_of(std::string_view names, std::string_view word) {
  return fmt::format(" {},", names).find(fmt::format(" {},", word)) != std::string::npos;
}

std::string in_small_letters(std::string_view text) {
  std::string small(text);
  for (char& letter : small) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return small;
}

bool is_naming(const std::string& word) {
  return std::ranges::any_of(naming_summaries(), [&](const NamingSummary& row) {
    return row.name == word || row.name == "hf:" + word || std::ranges::count(row.model_types, word) > 0;
  });
}

std::string named_text(const CommandTable& command, const std::string& word) {
  std::string out;
  const FoundTopics found = find_topics(command, word);
  for (const OptionTopic& topic : found.options) {
    out += out.empty() ? "" : "\n";
    append_wrapped(out, 0, fmt::format("{}, an option of {}:", topic.row->long_name, fmt::join(topic.commands, ", ")));
    out += option_text(*topic.row);
  }
  for (const ValueTopic& topic : found.values)
    add_meaning(out,
                fmt::format("{}, {} of {}:", fmt::join(topic.words, ", "),
                            topic.words.size() == 1 ? "a value" : "values", fmt::join(topic.options, ", ")),
                sentence(topic.meaning));
  const std::string program = command.name.substr(0, command.name.find(' '));
  if (is_naming(word) && (is_whole_program(command) || !found.takers.empty()))
    add_meaning(out, fmt::format("{}, a naming, a value of {}:", word, fmt::join(found.takers, ", ")),
                fmt::format("`{} layouts {}` has its keys, its forms and what loads it.", program, word));
  else if (!found.takers.empty())
    add_meaning(out, fmt::format("{}, a value of {}:", word, fmt::join(found.takers, ", ")),
                fmt::format("`{} help {}` has the option.", program, found.takers.front()));
  if (!is_whole_program(command)) return out;
  for (const std::string& role : role_names())
    if (role == word)
      add_meaning(out, word + ", a role:",
                  fmt::format("Tensors have it in whatever naming: `{0} inspect PATH --tensors '{1}*'` lists them, "
                              "`diff` names them by it, and --dtype '{1}=f32' casts them.",
                              program, word));
  for (const auto& [name, meaning] : program_files())
    if (name == word) add_meaning(out, word + ", a file:", meaning);
  for (const auto& [names, meaning] : environment_variables())
    if (is_one_of(names, word)) add_meaning(out, fmt::format("{}, of the environment:", names), meaning);
  for (const auto& [names, meaning] : printed_words())
    if (is_one_of(in_small_letters(names), in_small_letters(word)))
      add_meaning(out, fmt::format("{}, in what is printed:", names), meaning);
  return out;
}

bool speaks_of(std::string_view text, std::string_view word) {
  const auto is_letter = [&](std::size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
  };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1))
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  return false;
}

/// The topics that have another name and whose text has the word.
std::string mentions_text(const CommandTable& program, const std::string& word) {
  // Shorter words are in half of the texts.
  constexpr std::size_t kLeastLetters = 4;
  if (word.size() < kLeastLetters) return {};
  std::string out;
  for (const auto& [name, meaning] : program_files())
    if (speaks_of(meaning, word)) add_meaning(out, fmt::format("{}, a file:", name), meaning);
  std::vector<OptionTopic> options;
  for (const CommandTable* one : all_commands(program))
    for (const OptionRow* row : all_options(*one))
      if (speaks_of(row->about, word)) add_option(options, *row, command_words(*one));
  for (const OptionTopic& topic : options)
    add_meaning(out, fmt::format("{}, an option of {}:", topic.row->long_name, fmt::join(topic.commands, ", ")),
                sentence(topic.row->about));
  std::vector<std::string> errors;
  for (const std::string& error : error_slugs())
    if (speaks_of(error_help(error, program.name).value_or(""), word)) errors.push_back(error);
  if (!errors.empty())
    add_meaning(out, fmt::format("Errors, of which `{} help ERROR` says more:", program.name),
                fmt::format("{}", fmt::join(errors, ", ")));
  if (out.empty()) return out;
  std::string head;
  append_wrapped(head, 0, fmt::format("Nothing is called '{}'; these speak of it:", word));
  return head + "\n" + out;
}

}  // namespace

std::optional<std::string> topic_help(const CommandTable& command, const std::string& word) {
  std::string text = named_text(command, word);
  if (text.empty() && is_whole_program(command)) text = mentions_text(command, word);
  return text.empty() ? std::nullopt : std::optional(text);
}

std::vector<std::string> topic_words(const CommandTable& command, bool with_dashes) {
  std::vector<std::string> words;
  for (const CommandTable* one : all_commands(command))
    for (const OptionRow* row : all_options(*one)) {
      words.push_back(row->long_name.substr(with_dashes ? 0 : std::min(row->long_name.size(), std::size_t{2})));
      for (const ValueWord& value : row->words)
        if (value.in_help) words.push_back(value.word);
    }
  for (const std::string& role : role_names()) words.push_back(role);
  for (const auto& [name, meaning] : program_files()) words.emplace_back(name);
  return words;
}

}  // namespace glu_ckpt::cli
