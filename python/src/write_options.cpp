/// Prints the module glu_ckpt._options: the options of the commands, for help() and for type checkers.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "cli/command_table.hpp"

namespace {

using namespace glu_ckpt::cli;

constexpr std::string_view kHead =
    R"("""Options of the commands, for help() and for type checkers."""

from __future__ import annotations

#: What the options of a command do, a line each.
ABOUT: dict[str, str] = {{)";

// Type checkers take it for true; typing would be half of the time that the import takes.
constexpr std::string_view kClasses =
    R"(
TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any, TypedDict, Union

    PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
    Progress = Callable[[dict[str, Any]], object]
)";

/// Options that functions have no use for, or have as arguments.
bool is_for_functions(const std::string& name) {
  constexpr std::string_view kOthers[] = {"--json",     "--quiet",   "--verbose", "--help",
                                          "--progress", "--dry-run", "--check",   "--color"};
  return std::ranges::find(kOthers, name) == std::end(kOthers);
}

std::string_view type_of(const OptionRow& row) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {"", "bool"},   {"FILE", "PathLike"},        {"SIZE", "int | str"}, {"N", "int"},
      {"X", "float"}, {"LIST", "str | list[Any]"}, {"P%", "float | str"}};
  if (row.optional_value) return "bool | str";
  const auto known = std::ranges::find(kTypes, row.value_name, [](const auto& pair) { return pair.first; });
  return known == std::end(kTypes) ? "str" : known->second;
}

std::string field_of(const OptionRow& row) {
  std::string field = row.long_name.substr(2);
  std::ranges::replace(field, '-', '_');
  return field;
}

std::string about(const CommandTable& command) {
  std::string lines;
  for (const OptionRow* row : all_options(command))
    if (is_for_functions(row->long_name)) lines += fmt::format("    {}: {}\n", field_of(*row), row->about);
  return fmt::format("\n    \"{}\": r\"\"\"{}\"\"\",", command_words(command), lines);
}

std::string class_of(const CommandTable& command) {
  std::string name = command_words(command), fields;
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  for (const OptionRow* row : all_options(command))
    if (is_for_functions(row->long_name)) fields += fmt::format("        {}: {}\n", field_of(*row), type_of(*row));
  return fmt::format("\n    class {}Options(TypedDict, total=False):\n        \"\"\"Options of `{}`.\"\"\"\n\n{}", name,
                     command_words(command), fields);
}

/// Prints something of each command that is a function.
template <typename Text>
void print_each(const Text& text) {
  const CommandTable program = command_table();
  for (const CommandTable* command : all_commands(program))
    for (const std::string_view name : {"inspect", "convert", "verify", "diff", "report", "digest", "check", "stamp"})
      if (command_words(*command) == name) fmt::print("{}", text(*command));
}

/// What messages need to spell an option as an argument: the commands that are functions, and of each option the words
/// that it takes, or None for a flag.
void print_spellings() {
  std::map<std::string, std::string> options;
  std::string functions;
  print_each([&](const CommandTable& command) {
    functions += fmt::format("\"{}\", ", command_words(command));
    for (const OptionRow* row : all_options(command)) {
      if (!is_for_functions(row->long_name)) continue;
      std::string words;
      for (const ValueWord& word : row->words) words += fmt::format("\"{}\", ", word.word);
      options.try_emplace(row->long_name.substr(2), row->value_name.empty() ? "None" : "(" + words + ")");
    }
    return std::string();
  });
  fmt::print("\n#: The commands that are functions.\nFUNCTIONS = frozenset(({}\"plan\"))\n", functions);
  fmt::print(
      "\n#: The options, and the words that each takes; None for a flag.\nOPTIONS: dict[str, tuple[str, ...] | None] = "
      "{{\n");
  for (const auto& [name, words] : options) fmt::print("    \"{}\": {},\n", name, words);
  fmt::print("}}\n");
}

}  // namespace

int main() {
  fmt::print(kHead);
  print_each(about);
  fmt::print("\n}}\n");
  print_spellings();
  fmt::print(kClasses);
  print_each(class_of);
}
