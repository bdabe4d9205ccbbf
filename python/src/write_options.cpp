/// Prints the module glu_ckpt._options: the options of the commands, for type checkers. The package does not import it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "cli/command_table.hpp"

namespace {

using namespace glu_ckpt::cli;

constexpr std::string_view kHead =
    R"("""Options of the commands, for type checkers: the package itself does not import this."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypedDict, Union

PathLike = Union[str, "os.PathLike[str]"]
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

std::string class_of(const CommandTable& command) {
  std::string name = command_words(command), about, fields;
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  for (const OptionRow* row : all_options(command)) {
    if (!is_for_functions(row->long_name)) continue;
    std::string field = row->long_name.substr(2);
    std::ranges::replace(field, '-', '_');
    about += fmt::format("    {}: {}\n", field, row->about);
    fields += fmt::format("    {}: {}\n", field, type_of(*row));
  }
  return fmt::format("\n\nclass {}Options(TypedDict, total=False):\n    \"\"\"Options of `{}`.\n\n{}    \"\"\"\n\n{}",
                     name, command_words(command), about, fields);
}

}  // namespace

int main() {
  const CommandTable program = command_table();
  fmt::print("{}", kHead);
  for (const CommandTable* command : all_commands(program))
    for (const std::string_view name : {"inspect", "convert", "verify", "diff", "report", "digest", "check", "stamp"})
      if (command_words(*command) == name) fmt::print("{}", class_of(*command));
}
