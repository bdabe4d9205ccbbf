#pragma once
/// `help WORD` explains words that are neither commands nor errors: options, values, roles, namings, files.

#include <optional>
#include <string>
#include <vector>

#include "cli/command_table.hpp"

namespace glu_ckpt::cli {

/// Returns what the tables say of the word, below `command` or in the whole program: where it is the name of something,
/// that; else what speaks of it. None where nothing does.
std::optional<std::string> topic_help(const CommandTable& command, const std::string& word);

/// The words that topic_help() knows by name; of options those with their dashes, or without.
std::vector<std::string> topic_words(const CommandTable& command, bool with_dashes);

}  // namespace glu_ckpt::cli
