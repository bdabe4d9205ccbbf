#include "cli/parser_table.hpp"

#include <algorithm>

namespace glu_ckpt::cli {
namespace {

OptionRow row_of(const CLI::Option* option, const ParserNotes& notes) {
  OptionRow row;
  if (!option->get_snames().empty()) row.short_name = "-" + option->get_snames().front();
  if (!option->get_lnames().empty()) row.long_name = "--" + option->get_lnames().front();
  // A flag takes no value. Behind a colon CLI11 repeats what the value is checked for.
  if (option->get_positional())
    row.value_name = option->get_name(true);
  else if (option->get_expected_max() > 0)
    row.value_name = option->get_type_name().substr(0, option->get_type_name().find(':'));
  row.about = option->get_description();
  row.default_text = option->get_default_str();
  if (const auto words = notes.words.find(option); words != notes.words.end()) row.words = words->second;
  row.required = option->get_required();
  return row;
}

/// Help lists commands under these titles.
std::string title_of(const std::string& command) {
  static const std::map<std::string, std::string> kTitles = {
      {"inspect", "Look"},
      {"report", "Look"},
      {"plan", "Convert"},
      {"convert", "Convert"},
      {"stamp", "Convert"},
      {"verify", "Compare"},
      {"diff", "Compare"},
      {"digest", "Compare"},
      {"check", "Compare"},
      {"layouts", "This program"},
      {"doctor", "This program"},
      {"help", "This program"},
      {"completion", "This program"},
  };
  const auto title = kTitles.find(command);
  return title == kTitles.end() ? "Compute and measure" : title->second;
}

std::vector<OptionRow>& group_of(std::vector<OptionGroup>& groups, const std::string& title) {
  for (OptionGroup& group : groups)
    if (group.title == title) return group.options;
  return groups.emplace_back(OptionGroup{title, {}}).options;
}

}  // namespace

CommandTable table_of(const CLI::App* app, const ParserNotes& notes) {
  CommandTable table;
  for (const CLI::App* at = app; at != nullptr; at = at->get_parent())
    table.name = at->get_name() + (table.name.empty() ? "" : " ") + table.name;
  table.about = app->get_description();
  if (const auto lines = notes.examples.find(app); lines != notes.examples.end()) table.examples = lines->second;
  for (const CLI::Option* option : app->get_options())
    (option->get_positional() ? table.arguments : group_of(table.groups, option->get_group()))
        .push_back(row_of(option, notes));
  // Help stands first in every command, as the library makes it; it is read last.
  const auto general = std::ranges::find(table.groups, kGeneral, [](const OptionGroup& group) { return group.title; });
  if (general != table.groups.end()) {
    std::rotate(general->options.begin(), general->options.begin() + 1, general->options.end());
    std::rotate(general, general + 1, table.groups.end());
  }
  for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
    const std::string title = app->get_parent() == nullptr ? title_of(sub->get_name()) : "Commands";
    const auto group = std::ranges::find(table.commands, title, [](const auto& one) { return one.first; });
    if (group == table.commands.end())
      table.commands.push_back({title, {table_of(sub, notes)}});
    else
      group->second.push_back(table_of(sub, notes));
  }
  return table;
}

}  // namespace glu_ckpt::cli
