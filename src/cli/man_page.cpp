/// The manual page, in the man macros of roff.

#include <fmt/format.h>

#include "cli/command_table.hpp"

namespace glu_ckpt::cli {
namespace {

/// Text that roff prints as it is: hyphens that can be searched and pasted, no requests at the start of a line.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string bold(std::string_view text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + roff(text) + "\\fR"; }

void man_option(std::string& out, const std::string& term, const OptionRow& option) {
  out += ".TP\n" + term + "\n" + roff(sentence(option.about)) + "\n";
  if (!option.default_text.empty()) out += "Default: " + roff(option.default_text) + ".\n";
  std::string list;
  for (const ValueWord& value : option.words)
    if (value.in_help && value.about.empty()) list += (list.empty() ? "" : ", ") + bold(value.word);
  if (!list.empty()) out += "Values: " + list + ".\n";
  for (const ValueWord& value : option.words)
    if (value.in_help && !value.about.empty())
      out += ".RS\n.TP\n" + bold(value.word) + "\n" + roff(value.about) + "\n.RE\n";
}

std::string man_option_term(const OptionRow& option) {
  std::string term = (option.short_name.empty() ? "" : bold(option.short_name) + ", ") + bold(option.long_name);
  return option.value_name.empty() ? term : term + " " + italic(option.value_name);
}

void man_examples(std::string& out, const std::string& program, const CommandTable& command) {
  out += ".nf\n";
  for (const std::string& example : command.examples) out += roff(fmt::format("{} {}", program, example)) + "\n";
  out += ".fi\n";
}

void man_command(std::string& out, const std::string& program, const CommandTable& command) {
  out += ".SS " + roff(command_words(command)) + "\n" + bold(command.name) +
         roff(synopsis(command).substr(command.name.size())) + "\n.PP\n" + roff(sentence(command.about)) + "\n";
  for (const OptionRow& argument : command.arguments) man_option(out, italic(argument.value_name), argument);
  for (const OptionGroup& group : command.groups) {
    out += ".PP\n" + roff(group.title) + ":\n";
    for (const OptionRow& option : group.options) man_option(out, man_option_term(option), option);
  }
  if (command.examples.empty()) return;
  out += ".PP\nExamples:\n.PP\n.RS\n";
  man_examples(out, program, command);
  out += ".RE\n";
}

void man_definitions(std::string& out, std::string_view title, const Definitions& definitions) {
  out += fmt::format(".SH {}\n", title);
  for (const auto& [term, meaning] : definitions) out += ".TP\n" + bold(term) + "\n" + roff(sentence(meaning)) + "\n";
}

}  // namespace

std::string man_page(const CommandTable& program, std::string_view version) {
  std::string out = fmt::format(".TH {} 1 \"\" \"{} {}\" \"User Commands\"\n.nh\n.ad l\n", roff(program.name),
                                roff(program.name), roff(version));
  out += fmt::format(".SH NAME\n{} \\- convert Mixture\\-of\\-Experts checkpoints, bit for bit\n", roff(program.name));
  out += ".SH SYNOPSIS\n" + bold(program.name) + roff(synopsis(program).substr(program.name.size())) + "\n";
  out += ".SH DESCRIPTION\n" + roff(sentence(program.about)) + "\n";
  out += ".SH EXAMPLES\n";
  man_examples(out, program.name, program);
  out += ".SH COMMANDS\n";
  for (const CommandTable* command : all_commands(program))
    if (command != &program && command->commands.empty()) man_command(out, program.name, *command);
  out += ".SH OPTIONS\n";
  for (const OptionGroup& group : program.groups)
    for (const OptionRow& option : group.options) man_option(out, man_option_term(option), option);
  man_definitions(out, "ENVIRONMENT", environment_variables());
  man_definitions(out, "FILES", program_files());
  man_definitions(out, "WORDS THAT ARE PRINTED", printed_words());
  man_definitions(out, "EXIT STATUS", exit_statuses());
  return out;
}

}  // namespace glu_ckpt::cli
