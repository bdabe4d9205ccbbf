/// Completion scripts for bash, zsh and fish: commands, options, and the values that options take.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/command_table.hpp"
#include "core/fail.hpp"

namespace glu_ckpt::cli {
namespace {

/// The words that the shell is to offer for a value.
enum class Offer { Words, Files, Directories, Nothing };

Offer offer_for(const OptionRow& option) {
  if (!option.words.empty()) return Offer::Words;
  if (option.value_name == "DIR") return Offer::Directories;
  return option.value_name == "FILE" || option.long_name.empty() ? Offer::Files : Offer::Nothing;
}

/// "glu_ckpt_bench_kernels": the name as a part of a function's.
std::string identifier(const std::string& name) {
  std::string out = name;
  for (char& c : out)
    if (c == ' ' || c == '-') c = '_';
  return out;
}

std::string replaced(std::string_view text, std::string_view characters, std::string_view before) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) out += before;
    out += c;
  }
  return out;
}

std::string last_word(const std::string& name) { return name.substr(name.rfind(' ') + 1); }

// bash ----------------------------------------------------------------------------------------------------------------

std::string join_words(const std::vector<ValueWord>& words) {
  std::string out;
  for (const ValueWord& value : words) out += (out.empty() ? "" : " ") + value.word;
  return out;
}

/// Sets `values`, or `kind`, for the word behind an option.
std::string bash_values(const OptionRow& option) {
  switch (offer_for(option)) {
    case Offer::Words: return fmt::format("values='{}'", join_words(option.words));
    case Offer::Files: return "kind=files";
    case Offer::Directories: return "kind=directories";
    case Offer::Nothing: return "kind=nothing";
  }
  return {};
}

std::string bash_command(const CommandTable& command) {
  std::string names, out = fmt::format("    '{}')\n", command_words(command));
  // Options that take the same share a line.
  std::map<std::string, std::string> patterns;
  for (const OptionRow* row : all_options(command)) {
    const OptionRow& option = *row;
    for (const std::string& name : {option.long_name, option.short_name})
      if (!name.empty()) names += (names.empty() ? "" : " ") + name;
    if (option.value_name.empty()) continue;
    std::string& pattern = patterns[bash_values(option)];
    for (const std::string& name : {option.long_name, option.short_name})
      if (!name.empty()) pattern += (pattern.empty() ? "" : "|") + name;
  }
  out += fmt::format("      options='{}'\n", names);
  std::string words;
  for (const CommandTable* one : subcommands(command)) words += (words.empty() ? "" : " ") + last_word(one->name);
  if (!words.empty()) out += fmt::format("      others='{}'\n", words);
  if (words.empty() && !command.arguments.empty()) {
    const OptionRow& argument = command.arguments.front();
    out += offer_for(argument) == Offer::Words ? fmt::format("      others='{}'\n", join_words(argument.words))
                                               : "      others_kind=files\n";
  }
  if (!patterns.empty()) out += "      case $previous in\n";
  for (const auto& [values, pattern] : patterns) out += fmt::format("        {}) {} ;;\n", pattern, values);
  return out + (patterns.empty() ? "" : "      esac\n") + "      ;;\n";
}

/// The shell splits words at ':' and '=' too, so the line is split here, and what stands before the last ':' is taken
/// off the answers again.
constexpr std::string_view kBashBegin = R"(# bash completion for %PROGRAM%; made by `%PROGRAM% completion bash`.
%FUNCTION%() {
  local line=${COMP_LINE:0:COMP_POINT} command='' previous='' current='' prefix='' word
  local options='' others='' others_kind='' values='' kind=''
  local -a words
  read -ra words <<<"$line"
  if [[ $line != *[[:space:]] ]]; then
    current=${words[-1]}
    unset 'words[-1]'
  fi
  for word in "${words[@]:1}"; do
    case "$command|$word" in
)";

constexpr std::string_view kBashMiddle = R"(    esac
  done
  previous=${words[-1]}
  if [[ $current == --*=* ]]; then
    previous=${current%%=*}
    prefix=$previous=
    current=${current#*=}
  fi
  case $command in
)";

constexpr std::string_view kBashEnd = R"(  esac
  if [[ -z $values$kind ]]; then
    values=$others
    kind=$others_kind
    [[ $current != -* ]] || values=$options kind=
  fi
  case $kind in
    files) compopt -o default ;;
    directories) compopt -o dirnames ;;
  esac
  COMPREPLY=()
  [[ -n $values ]] || return 0
  while read -r word; do
    [[ $COMP_WORDBREAKS == *=* ]] || word=$prefix$word
    [[ $COMP_WORDBREAKS != *:* || $current != *:* ]] || word=${word#"${current%"${current##*:}"}"}
    COMPREPLY+=("$word")
  done < <(compgen -W "$values" -- "$current")
}
complete -F %FUNCTION% %PROGRAM%
)";

std::string bash_script(const CommandTable& program) {
  const auto fill = [&](std::string_view text) {
    std::string out(text);
    for (const auto& [mark, value] :
         {std::pair<std::string, std::string>("%PROGRAM%", program.name),
          std::pair<std::string, std::string>("%FUNCTION%", "_" + identifier(program.name))})
      for (std::size_t at; (at = out.find(mark)) != std::string::npos;) out.replace(at, mark.size(), value);
    return out;
  };
  std::string out = fill(kBashBegin);
  for (const CommandTable* command : all_commands(program))
    for (const CommandTable* one : subcommands(*command))
      out += fmt::format("      '{}|{}') command='{}' ;;\n", command_words(*command), last_word(one->name),
                         command_words(*one));
  out += kBashMiddle;
  for (const CommandTable* command : all_commands(program)) out += bash_command(*command);
  return out + fill(kBashEnd);
}

// zsh -----------------------------------------------------------------------------------------------------------------

/// Escapes a text between single quotes that _arguments takes apart.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : replaced(text, "\\[]:$`", "\\")) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out;
}

std::string zsh_values(const OptionRow& option) {
  switch (offer_for(option)) {
    case Offer::Words: {
      std::string words;
      for (const ValueWord& value : option.words) words += (words.empty() ? "" : " ") + zsh_text(value.word);
      return "(" + words + ")";
    }
    case Offer::Files: return "_files";
    case Offer::Directories: return "_files -/";
    case Offer::Nothing: return " ";
  }
  return {};
}

std::string zsh_option(const OptionRow& option) {
  const bool valued = !option.value_name.empty();
  std::string out;
  if (option.short_name.empty())
    out = fmt::format("'{}{}", option.long_name, valued ? "=" : "");
  else if (option.long_name.empty())
    out = fmt::format("'{}{}", option.short_name, valued ? "+" : "");
  else
    out = fmt::format("'({0} {1})'{{{0}{2},{1}{3}}}'", option.short_name, option.long_name, valued ? "+" : "",
                      valued ? "=" : "");
  out += fmt::format("[{}]", zsh_text(option.about));
  if (valued) out += fmt::format(":{}:{}", zsh_text(option.value_name), zsh_values(option));
  return out + "'";
}

std::string zsh_function(const CommandTable& command) {
  const std::string function = identifier(command.name);
  const auto commands = subcommands(command);
  std::string out = fmt::format("_{}() {{\n", function);
  if (!commands.empty()) out += "  local curcontext=$curcontext state line\n";
  out += commands.empty() ? "  _arguments -s" : "  _arguments -C";
  for (const OptionRow* option : all_options(command)) out += " \\\n    " + zsh_option(*option);
  if (commands.empty()) {
    for (const OptionRow& argument : command.arguments)
      out += fmt::format(" \\\n    ':{}:{}'", zsh_text(argument.value_name), zsh_values(argument));
    return out + "\n}\n\n";
  }
  std::string words;
  for (const CommandTable* one : commands)
    words += fmt::format("{}{}\\:\"{}\"", words.empty() ? "" : " ", last_word(one->name), zsh_text(one->about));
  out += fmt::format(" \\\n    '1:command:(({}))' \\\n    '*::argument:->rest'\n", words);
  out += "  [[ $state == rest ]] || return\n  case $line[1] in\n";
  for (const CommandTable* one : commands)
    out += fmt::format("    {}) _{} ;;\n", last_word(one->name), identifier(one->name));
  return out + "  esac\n}\n\n";
}

/// Works as a file of $fpath, which the shell runs as the function itself, and where it is sourced.
std::string zsh_script(const CommandTable& program) {
  const std::string function = identifier(program.name);
  std::string out =
      fmt::format("#compdef {0}\n# zsh completion for {0}; made by `{0} completion zsh`.\n\n", program.name);
  for (const CommandTable* command : all_commands(program)) out += zsh_function(*command);
  out += fmt::format("if [[ $funcstack[1] == _{0} ]]; then\n  _{1} \"$@\"\nelse\n  compdef _{1} {0}\nfi\n",
                     program.name, function);
  return out;
}

// fish ----------------------------------------------------------------------------------------------------------------

std::string fish_quoted(std::string_view text) { return "'" + replaced(text, "\\'", "\\") + "'"; }

std::string fish_words(const std::vector<ValueWord>& words) {
  std::string out;
  for (const ValueWord& value : words) {
    out += (out.empty() ? "" : " ") + value.word;
    if (!value.about.empty()) out += "\\t" + fish_quoted(value.about);
  }
  return fish_quoted(out);
}

std::string fish_values(const OptionRow& option) {
  switch (offer_for(option)) {
    case Offer::Words: return "-x -a " + fish_words(option.words);
    case Offer::Files: return "-r -F";
    case Offer::Directories: return "-x -a '(__fish_complete_directories)'";
    case Offer::Nothing: return "-x";
  }
  return {};
}

std::string fish_command(const std::string& program, const CommandTable& command) {
  const std::string begin =
      fmt::format("complete -c {} -n \"__{}_at '{}'\"", program, identifier(program), command_words(command));
  std::string out;
  for (const CommandTable* one : subcommands(command))
    out += fmt::format("{} -a {} -d {}\n", begin, last_word(one->name), fish_quoted(one->about));
  for (const OptionRow* row : all_options(command)) {
    const OptionRow& option = *row;
    out += begin;
    if (!option.short_name.empty()) out += " -s " + option.short_name.substr(1);
    if (!option.long_name.empty()) out += " -l " + option.long_name.substr(2);
    if (!option.value_name.empty()) out += " " + fish_values(option);
    out += fmt::format(" -d {}\n", fish_quoted(option.about));
  }
  if (!command.arguments.empty()) {
    const OptionRow& argument = command.arguments.front();
    out += begin + (offer_for(argument) == Offer::Words ? " -a " + fish_words(argument.words) : " -F") + "\n";
  }
  return out;
}

std::string fish_script(const CommandTable& program) {
  std::string out = fmt::format(
      "# fish completion for {0}; made by `{0} completion fish`.\n"
      "function __{1}_at\n"
      "    set -l words (commandline -opc)\n"
      "    set -e words[1]\n"
      "    set -l command ''\n"
      "    for word in $words\n"
      "        switch \"$command|$word\"\n",
      program.name, identifier(program.name));
  for (const CommandTable* command : all_commands(program))
    for (const CommandTable* one : subcommands(*command))
      out += fmt::format("            case '{}|{}'\n                set command '{}'\n", command_words(*command),
                         last_word(one->name), command_words(*one));
  out +=
      fmt::format("        end\n    end\n    test \"$command\" = \"$argv[1]\"\nend\ncomplete -c {} -f\n", program.name);
  for (const CommandTable* command : all_commands(program)) out += fish_command(program.name, *command);
  return out;
}

}  // namespace

std::string completion_script(std::string_view shell, const CommandTable& program) {
  if (shell == "bash") return bash_script(program);
  if (shell == "zsh") return zsh_script(program);
  if (shell == "fish") return fish_script(program);
  fail(ErrorCode::Usage, {}, "'{}' is no shell that completions are made for; bash, zsh and fish are", shell);
}

}  // namespace glu_ckpt::cli
