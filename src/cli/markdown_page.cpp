/// docs/cli.md, made from the table of commands and options.

#include <fmt/format.h>

#include "cli/command_table.hpp"

namespace glu_ckpt::cli {
namespace {

/// A cell of a table: a bar would end it.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : c == '<' ? std::string("&lt;") : std::string(1, c);
  return out;
}

std::string meaning_of(const OptionRow& option) {
  std::string text = cell(sentence(option.about)), plain;
  for (const ValueWord& value : option.words)
    if (value.in_help && value.about.empty()) plain += fmt::format("{}`{}`", plain.empty() ? "" : ", ", value.word);
  if (!plain.empty()) text += " " + plain + ".";
  for (const ValueWord& value : option.words)
    if (value.in_help && !value.about.empty()) text += fmt::format("<br>`{}`: {}", value.word, cell(value.about));
  return text;
}

void add_rows(std::string& out, std::string_view title, const std::vector<OptionRow>& rows) {
  out += fmt::format("\n| {} | meaning | default |\n| --- | --- | --- |\n", cell(title));
  for (const OptionRow& row : rows) {
    const std::string names = row.short_name.empty() ? row.long_name : row.short_name + ", " + row.long_name;
    const std::string_view blank = names.empty() || row.value_name.empty() ? "" : " ";
    out +=
        fmt::format("| `{}{}{}` | {} | {} |\n", names, blank, row.value_name, meaning_of(row), cell(row.default_text));
  }
}

}  // namespace

std::string options_page(const CommandTable& program) {
  std::string out = fmt::format(
      "# Commands and options\n\nThis page is made by `{} help --page cli` from the table that the parser reads.\n",
      program.name);
  for (const CommandTable* command : all_commands(program)) {
    const std::string words = command_words(*command);
    out += fmt::format("\n## {}\n\n{}\n\n```sh\n{}\n", words.empty() ? program.name : words,
                       cell(sentence(command->about)), synopsis(*command));
    for (const std::string& example : command->examples) out += fmt::format("{} {}\n", program.name, example);
    out += "```\n";
    if (!command->arguments.empty()) add_rows(out, "argument", command->arguments);
    for (const OptionGroup& group : command->groups) add_rows(out, group.title, group.options);
  }
  out += "\n## Environment\n\n| variable | meaning |\n| --- | --- |\n";
  for (const auto& [name, about] : environment_variables()) out += fmt::format("| `{}` | {} |\n", name, cell(about));
  out += "\n## Files\n\n| file | meaning |\n| --- | --- |\n";
  for (const auto& [name, about] : program_files()) out += fmt::format("| `{}` | {} |\n", name, cell(about));
  out += "\n## Words that are printed\n\n| word | meaning |\n| --- | --- |\n";
  for (const auto& [name, about] : printed_words()) out += fmt::format("| {} | {} |\n", name, cell(about));
  out += "\n## Exit status\n\n| status | meaning |\n| --- | --- |\n";
  for (const auto& [name, about] : exit_statuses()) out += fmt::format("| {} | {} |\n", name, cell(about));
  return out;
}

}  // namespace glu_ckpt::cli
