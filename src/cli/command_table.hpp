#pragma once
/// The commands and options that the parser accepts, as a value. parser_table.cpp makes it from the parser itself;
/// help, the manual page and the completions are printed from it, so none of them can differ from what is accepted.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace glu_ckpt::cli {

/// A value that an option takes, as it is typed.
struct ValueWord {
  std::string word;
  /// The meaning; may be empty.
  std::string about = {};
  /// False for words that only the completions offer, as there are too many for help.
  bool in_help = true;
};

/// An option, a flag or a positional argument.
struct OptionRow {
  /// "-q"; may be empty.
  std::string short_name;
  /// "--quiet"; empty for positional arguments.
  std::string long_name;
  /// "FILE", "N"; empty for flags. FILE and DIR are completed as what they are, positional arguments as files; where
  /// there are `words`, they are offered.
  std::string value_name;
  std::string about;
  /// The default as help prints it; empty where there is none.
  std::string default_text;
  std::vector<ValueWord> words;
  bool required = false;
};

struct OptionGroup {
  std::string title;
  std::vector<OptionRow> options;
};

struct CommandTable {
  /// The name, with the program's: "glu-ckpt bench kernels".
  std::string name;
  std::string about;
  /// Whole command lines, without the program's name in front.
  std::vector<std::string> examples;
  std::vector<OptionRow> arguments;
  std::vector<OptionGroup> groups;
  /// The commands, by the titles that help lists them under.
  std::vector<std::pair<std::string, std::vector<CommandTable>>> commands;
};

/// Returns the table of everything that `program` accepts. It is defined in options.cpp.
CommandTable command_table(const std::string& program = "glu-ckpt");

/// The terms, with their meanings, that help and the manual page have about the program as a whole.
using Definitions = std::vector<std::pair<std::string_view, std::string_view>>;
Definitions environment_variables();
Definitions exit_statuses();

/// "convert [OPTIONS] SRC DST", behind the name of the program.
std::string synopsis(const CommandTable& command);

/// Gives the text a capital letter and a full stop, unless it has them: help and options begin as the items of a list
/// do.
std::string sentence(std::string_view text);

/// Returns the help of a command, or of the whole program, at most kHelpColumns wide.
std::string help_text(const CommandTable& command);
constexpr std::size_t kHelpColumns = 80;

/// The manual page in roff.
std::string man_page(const CommandTable& program, std::string_view version);

/// A script for "bash", "zsh" or "fish".
std::string completion_script(std::string_view shell, const CommandTable& program);

/// The name without the program's: "bench kernels", or nothing for the program itself.
std::string command_words(const CommandTable& command);

/// Every command at any depth, those that have commands of their own too, in the order of help; first the program.
std::vector<const CommandTable*> all_commands(const CommandTable& program);

}  // namespace glu_ckpt::cli
