#pragma once
/// The table of commands, read off the parser.

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "cli/command_table.hpp"

namespace glu_ckpt::cli {

/// The name by which CLI11 calls the group of options that are in none.
inline constexpr const char* kGeneral = "Options";

/// The facts of an option that the parser's library has no place for.
struct ParserNotes {
  std::map<const CLI::App*, std::vector<std::string>> examples;
  std::map<const CLI::Option*, std::vector<ValueWord>> words;
};

CommandTable table_of(const CLI::App* app, const ParserNotes& notes);

}  // namespace glu_ckpt::cli
