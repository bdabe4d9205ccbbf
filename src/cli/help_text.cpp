/// `--help` and `glu-ckpt help`: examples first, options in groups, at most 80 columns.

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/command_table.hpp"
#include "cli/error_help.hpp"
#include "report/text/tell.hpp"

namespace glu_ckpt::cli {
namespace {

/// The column at which the meaning of an option begins.
constexpr std::size_t kAboutColumn = 27;

/// Stands for a blank at which no line is broken.
constexpr char kFixedBlank = '\x1f';

/// Prints words from `column` on, and goes on at `indent` in the next line where one does not fit.
void wrap(std::string& out, std::size_t column, std::size_t indent, std::string_view text) {
  std::istringstream words{std::string(text)};
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && column + 1 + word.size() > kHelpColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    std::ranges::replace(word, kFixedBlank, ' ');
    out += word;
    column += word.size();
  }
  out += '\n';
}

std::string coloured(report::Paint paint, const std::string& text) { return report::painted(paint, text, stdout); }

/// A term and its meaning beside it, or below where the term is long.
void define(std::string& out, const std::string& term, std::size_t indent, std::string_view meaning) {
  const std::size_t begin = std::min(term.find_first_not_of(' '), term.size());
  out += term.substr(0, begin) + coloured(report::Paint::Term, term.substr(begin));
  if (meaning.empty()) {
    out += '\n';
    return;
  }
  const bool below = term.size() + 2 > indent;
  out += below ? "\n" + std::string(indent, ' ') : std::string(indent - term.size(), ' ');
  wrap(out, indent, indent, meaning);
}

std::string heading(std::string_view title) {
  return "\n" + coloured(report::Paint::Heading, fmt::format("{}:", title)) + "\n";
}

std::string option_term(const OptionRow& option) {
  std::string term = "  " + (option.short_name.empty() ? "    " : option.short_name + ", ") + option.long_name;
  return option.value_name.empty() ? term : term + " " + option.value_name;
}

/// The values that need no explanation are listed in the option's own text, the others below it.
std::string words_inline(const OptionRow& option) {
  std::string list;
  for (const ValueWord& value : option.words)
    if (value.in_help && value.about.empty()) list += (list.empty() ? "" : ", ") + value.word;
  return list;
}

void print_option(std::string& out, const std::string& term, std::size_t indent, const OptionRow& option,
                  HelpLength length) {
  std::string about = option.about;
  if (length == HelpLength::Short) return define(out, term, indent, about.substr(0, about.find(';')));
  if (const std::string words = words_inline(option); !words.empty()) about += ": " + words;
  if (!option.default_text.empty()) {
    std::string text = "[default: " + option.default_text + "]";
    if (indent + text.size() <= kHelpColumns) std::ranges::replace(text, ' ', kFixedBlank);
    about += " " + text;
  }
  define(out, term, indent, about);
  std::size_t widest = 0;
  for (const ValueWord& value : option.words)
    if (value.in_help && !value.about.empty()) widest = std::max(widest, value.word.size());
  for (const ValueWord& value : option.words)
    if (value.in_help && !value.about.empty())
      define(out, std::string(indent + 2, ' ') + value.word, indent + 2 + widest + 2, value.about);
}

void print_definitions(std::string& out, std::string_view title, std::size_t indent, const Definitions& definitions) {
  out += heading(title);
  for (const auto& [term, meaning] : definitions) define(out, fmt::format("  {}", term), indent, meaning);
}

/// Names the options that `convert` has, too, which would be most of the help.
void print_as_convert(std::string& out, const std::string& program, const CommandTable& command) {
  std::string names;
  for (const OptionRow* option : all_options(command))
    if (option->as_convert) names += (names.empty() ? "" : ", ") + option->long_name;
  if (names.empty()) return;
  out += heading(fmt::format("As `{0} convert` takes them; `{0} help OPTION` explains one", program));
  append_wrapped(out, 2, names);
}

}  // namespace

void append_wrapped(std::string& out, std::size_t indent, std::string_view text) {
  out += std::string(indent, ' ');
  wrap(out, indent, indent, text);
}

std::string option_text(const OptionRow& option) {
  std::string out;
  print_option(out, option_term(option), kAboutColumn, option, HelpLength::Whole);
  return out;
}

std::string help_text(const CommandTable& command, HelpLength length) {
  const bool whole_program = command_words(command).empty(), is_short = length == HelpLength::Short;
  std::string out;
  wrap(out, 0, 0, sentence(command.about));
  if (!command.examples.empty()) out += heading(is_short && !whole_program ? "Example" : "Examples");
  const std::string program = command.name.substr(0, command.name.find(' '));
  for (const std::string& example : command.examples) {
    out += fmt::format("  {} {}\n", program, example);
    if (is_short && !whole_program) break;
  }
  out += "\n" + coloured(report::Paint::Heading, "Usage:") + " ";
  wrap(out, 7, 9, synopsis(command));
  if (!command.arguments.empty()) out += heading("Arguments");
  for (const OptionRow& argument : command.arguments)
    print_option(out, "  " + argument.value_name, 10, argument, length);
  for (const auto& [title, commands] : command.commands) {
    out += heading(title);
    for (const CommandTable& one : commands)
      define(out, "  " + one.name.substr(one.name.rfind(' ') + 1), 14, one.about);
  }
  for (const OptionGroup& group : command.groups) {
    const auto is_left_out = [&](const OptionRow& option) { return is_short && option.as_convert; };
    if (std::ranges::all_of(group.options, is_left_out)) continue;
    out += heading(group.title);
    for (const OptionRow& option : group.options)
      if (!is_left_out(option)) print_option(out, option_term(option), kAboutColumn, option, length);
  }
  if (is_short) print_as_convert(out, program, command);
  if (is_short) {
    out += fmt::format("\n`{} --help` has {}.\n", command.name,
                       whole_program ? "the environment and the exit statuses, too" : "the values and defaults, too");
  } else if (whole_program) {
    print_definitions(out, "Environment", 14, environment_variables());
    print_definitions(out, "Exit status", 5, exit_statuses());
    out += fmt::format(
        "\n`{0} help COMMAND` has the options of a command,\n`{0} help WORD` the meaning of an error, an option, a "
        "value or a file.\n",
        program);
  }
  return out;
}

}  // namespace glu_ckpt::cli
