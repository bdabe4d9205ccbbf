#pragma once
/// The commands and options that there are, as a value (option_table.cpp). The parser, help, the manual page, the
/// completions and Python's typed options are made from it, so none of them can differ from what is accepted.

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/options.hpp"

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
  std::string default_text = {};
  std::vector<ValueWord> words = {};
  /// Puts what was typed into the options; the text of a flag means nothing. Returns what is wrong with it, or nothing.
  /// There is none for --help and --version, which the parser answers.
  std::function<std::string(Options&, const std::string& typed)> set = {};
  bool required = false;
  /// The value may be left out.
  bool optional_value = false;
  /// It takes all arguments from there on.
  bool many = false;
  /// One of these must be given as well; none of those.
  std::vector<std::string> needs = {};
  std::vector<std::string> excludes = {};
  /// `convert` has it with the same meaning; the short help of other commands only names it.
  bool as_convert = false;

  const std::string& name() const { return long_name.empty() ? value_name : long_name; }
};

struct OptionGroup {
  std::string title;
  std::vector<OptionRow> options;
};

struct CommandTable {
  /// The name, with the program's: "glu-ckpt bench kernels".
  std::string name;
  std::string about;
  /// None where a command is one of `commands`, and where the parser itself answers: help, completion.
  Execute execute = nullptr;
  /// Whole command lines, without the program's name in front.
  std::vector<std::string> examples;
  std::vector<OptionRow> arguments;
  std::vector<OptionGroup> groups;
  /// The commands, by the titles that help lists them under.
  std::vector<std::pair<std::string, std::vector<CommandTable>>> commands = {};
};

/// Returns the table of everything that `program` accepts.
CommandTable command_table(const std::string& program = "glu-ckpt");

/// The terms, with their meanings, that help and the manual page have about the program as a whole.
using Definitions = std::vector<std::pair<std::string_view, std::string_view>>;
Definitions environment_variables();
Definitions exit_statuses();
Definitions program_files();
/// The headings of tables and the first words of lines that the commands print; several of one meaning are parted by
/// commas.
Definitions printed_words();

/// "convert [OPTIONS] SRC DST", behind the name of the program.
std::string synopsis(const CommandTable& command);

/// Gives the text a capital letter and a full stop, unless it has them: help and options begin as the items of a list
/// do.
std::string sentence(std::string_view text);

/// Returns the help of a command, or of the whole program, at most kHelpColumns wide; the short one without values,
/// defaults and more than one example. Painted where stdout has colours.
enum class HelpLength { Short, Whole };
std::string help_text(const CommandTable& command, HelpLength length = HelpLength::Whole);
constexpr std::size_t kHelpColumns = 80;

/// The lines of one option in the whole help.
std::string option_text(const OptionRow& option);

/// The manual page in roff.
std::string man_page(const CommandTable& program, std::string_view version);

/// docs/cli.md: all commands with their options.
std::string options_page(const CommandTable& program);

/// A script for "bash", "zsh" or "fish".
std::string completion_script(std::string_view shell, const CommandTable& program);

/// The name without the program's: "bench kernels", or nothing for the program itself.
std::string command_words(const CommandTable& command);

/// Every command at any depth, those that have commands of their own too, in the order of help; first the program.
std::vector<const CommandTable*> all_commands(const CommandTable& program);
/// Of one command: the commands below it; its options, without regard to groups.
std::vector<const CommandTable*> subcommands(const CommandTable& command);
std::vector<const OptionRow*> all_options(const CommandTable& command);

}  // namespace glu_ckpt::cli
