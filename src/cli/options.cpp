/// Reads a command line: CLI11, by the table of commands and options.

#include "cli/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>

#include "cli/command_table.hpp"
#include "cli/error_help.hpp"
#include "cli/option_values.hpp"
#include "cli/session.hpp"
#include "cli/topic_help.hpp"
#include "core/fail.hpp"
#include "core/parser_memory.hpp"
#include "core/usable_cores.hpp"
#include "remote/remote_calls.hpp"
#include "report/text/tell.hpp"

namespace glu_ckpt::cli {
namespace {

using Words = std::span<const std::string>;

const CommandTable* command_named(const CommandTable& command, const std::string& word) {
  for (const CommandTable* one : subcommands(command))
    if (one->name.substr(command.name.size() + 1) == word) return one;
  return nullptr;
}

/// The way on for a word that is none of `known`, nor nearly one: that of another program's word which it nearly is.
std::string way_of_near_word(const CommandTable& command, const std::string& word) {
  // Few letters are near any others.
  constexpr std::size_t kLeastLetters = 5;
  if (word.size() < word.find_first_not_of('-') + kLeastLetters) return {};
  const std::string near = nearest(word, words_said_otherwise(command.name));
  return near.empty() ? std::string() : said_otherwise(command.name, near);
}

[[noreturn]] void refuse_command(const CommandTable& command, const std::string& word) {
  std::vector<std::string> known;
  for (const CommandTable* one : subcommands(command)) known.push_back(one->name.substr(command.name.size() + 1));
  std::string way = said_otherwise(command.name, word);
  if (way.empty()) way = suggestion(word, known);
  if (way.empty()) way = way_of_near_word(command, word);
  if (way.empty()) way = fmt::format("; `{} --help` lists them", command.name);
  fail(ErrorCode::Usage, {}, "'{}' is not a command{}{}", word,
       command.name.find(' ') == command.name.npos ? "" : fmt::format(" of {}", command.name), way);
}

/// Refuses a word that `help` knows nothing of, below the command `command`.
[[noreturn]] void refuse_topic(const CommandTable& command, const std::string& word) {
  const bool is_program = command_words(command).empty();
  if (!is_program && !subcommands(command).empty()) refuse_command(command, word);
  std::vector<std::string> known = topic_words(command, word.starts_with('-'));
  if (is_program) {
    std::ranges::copy(error_slugs(), std::back_inserter(known));
    for (const CommandTable* one : subcommands(command)) known.push_back(command_words(*one));
  }
  std::string way = said_otherwise(command.name, word);
  if (way.empty()) way = suggestions(word, known);
  if (!is_program)
    fail(ErrorCode::Usage, {}, "'{}' is no option of {}, and no value of one{}", word, command.name,
         way.empty() ? fmt::format("; `{} --help` lists them", command.name) : way);
  if (way.empty())
    way = fmt::format(
        "; `{0} --help` lists the commands, `{0} help convert` the most options, `{0} layouts` the namings, and a "
        "message ends with its error in brackets",
        command.name);
  fail(ErrorCode::Usage, {}, "'{}' is no command, option, value, role, file or error{}", word, way);
}

[[noreturn]] void refuse_option(const CommandTable& command, const std::string& name, Words behind) {
  if (!command.commands.empty())
    for (std::size_t i = 0; i < behind.size(); ++i)
      if (const CommandTable* later = command_named(command, behind[i]); later != nullptr) {
        // Words between the option and the command are the option's value.
        std::vector<std::string> words = {name};
        words.insert(words.end(), behind.begin(), behind.begin() + static_cast<std::ptrdiff_t>(i));
        words.insert(words.end(), behind.begin() + static_cast<std::ptrdiff_t>(i) + 1, behind.end());
        fail(ErrorCode::Usage, {}, "{} belongs after the command: {} {}", name, later->name, fmt::join(words, " "));
      }
  std::vector<std::string> known;
  for (const OptionRow* row : all_options(command)) known.push_back(row->long_name);
  std::string way = said_otherwise(command.name, name);
  if (way.empty()) way = suggestion(name, known);
  if (name == "-v" && std::ranges::find(known, "--version") != known.end())
    way = "; -V prints the version, and -v belongs after a command";
  if (way.empty()) way = way_of_near_word(command, name);
  if (way.empty()) way = fmt::format("; `{} --help` lists its options", command.name);
  fail(ErrorCode::Usage, {}, "{} is no option of {}{}", name, command.name, way);
}

/// The words with all those that an option of many takes as one, between commas: its own, and those behind it that hold
/// a "=", as no path behind an option does. It may be given again.
std::vector<std::string> joined_rules(const CommandTable& command, Words words) {
  std::vector<std::string> joined(words.begin(), words.end());
  for (const OptionRow* row : all_options(command)) {
    if (!row->many) continue;
    std::string value;
    std::optional<std::size_t> first;
    bool has_value = false;
    for (std::size_t i = 0; i < joined.size() && joined[i] != "--";) {
      const bool is_equated = joined[i].starts_with(row->long_name + "=");
      if (joined[i] != row->long_name && !is_equated) {
        ++i;
        continue;
      }
      if (!first) first = i;
      const auto add = [&](const std::string& rule) {
        value += (has_value ? "," : "") + rule;
        has_value = true;
      };
      std::size_t end = i + 1;
      if (is_equated)
        add(joined[i].substr(row->long_name.size() + 1));
      else if (end < joined.size() && !joined[end].starts_with('-'))
        add(joined[end++]);
      while (end < joined.size() && !joined[end].starts_with('-') && joined[end].find('=') != std::string::npos)
        add(joined[end++]);
      joined.erase(joined.begin() + static_cast<std::ptrdiff_t>(i), joined.begin() + static_cast<std::ptrdiff_t>(end));
    }
    if (!first) continue;
    const auto place = joined.begin() + static_cast<std::ptrdiff_t>(*first);
    if (has_value)
      joined.insert(place, {row->long_name, value});
    else
      joined.insert(place, row->long_name);
  }
  return joined;
}

/// The words with those behind "--" that are no options of `help` itself: `help --to` asks what that option means.
std::vector<std::string> with_topics_last(const CommandTable& command, Words words) {
  std::set<std::string> own;
  for (const OptionRow* row : all_options(command)) own.insert({row->long_name, row->short_name});
  std::vector<std::string> rest, topics;
  for (const std::string& word : words)
    (word.starts_with('-') && word != "--" && !own.contains(word.substr(0, word.find('='))) ? topics : rest)
        .push_back(word);
  if (topics.empty()) return rest;
  rest.emplace_back("--");
  rest.insert(rest.end(), topics.begin(), topics.end());
  return rest;
}

constexpr const char* kEmptyValue = "{} is empty: is the variable that it comes from set?";

/// CLI11's parser of one command, made from its table.
class Parser {
 public:
  Parser(const CommandTable& command, Words words, const std::string& version) : command_(command), words_(words) {
    const auto add = [&](const OptionRow& row, const std::string& names) {
      if (row.long_name == "--help") return app_.set_help_flag(names);
      if (row.long_name == "--version") return app_.set_version_flag(names, version);
      if (row.value_name.empty()) return app_.add_flag(names)->disable_flag_override();
      return app_.add_option(names)->expected(row.optional_value ? 0 : 1, 1)->required(row.required);
    };
    for (const OptionRow* row : all_options(command))
      options_.emplace_back(row, add(*row, row->short_name + "," + row->long_name));
    for (const auto& [row, option] : options_)
      for (const std::string& other : row->excludes) option->excludes(app_.get_option(other));
    // Where an argument may be given many times, each word has one of its own: CLI11 would split "[a,b]".
    for (const OptionRow& row : command.arguments)
      for (std::size_t i = 0; i < (row.many ? std::max<std::size_t>(words.size(), 1) : 1); ++i)
        options_.emplace_back(&row, add(row, row.value_name)->required(row.required && i == 0));
  }

  /// Sets the paths of `options` as far as they are understood. Throws CLI::CallForHelp, CLI::CallForVersion and Usage.
  void parse(Options& options) {
    // CLI11 would take the next word for the value.
    for (const std::string& word : Words(words_.begin(), std::ranges::find(words_, "--")))
      if (word.starts_with('-') && word.ends_with('=') &&
          app_.get_option_no_throw(word.substr(0, word.size() - 1)) != nullptr)
        fail(ErrorCode::Usage, {}, kEmptyValue, word.substr(0, word.size() - 1));
    std::vector<std::string> backwards(words_.rbegin(), words_.rend());
    try {
      app_.parse(backwards);
      note_paths(options);
    } catch (const CLI::Success&) {
      throw;
    } catch (const CLI::ParseError& error) {
      note_paths(options);
      refuse_unknown();
      refuse(error);
    }
    // CLI11's own needs() asks for all of several.
    const auto is_given = [&](const std::string& name) { return app_.count(name) > 0; };
    for (const auto& [row, option] : options_)
      if (option->count() > 0 && !row->needs.empty() && std::ranges::none_of(row->needs, is_given))
        fail(ErrorCode::Usage, {}, "{} needs {}", row->name(), fmt::join(row->needs, " or "));
  }

  /// The paths that a command is about: those that it must have, or may have several of, and what comes second.
  void note_paths(Options& options) const {
    for (const auto& [row, option] : options_) {
      if (option->count() == 0) continue;
      const bool is_first = row == command_.arguments.data();
      if (is_first && (row->required || row->many) && command_.execute != nullptr)
        options.source = option->results()[0];
      if (command_.arguments.size() > 1 && row == &command_.arguments[1]) options.destination = option->results()[0];
    }
  }

  /// Sets the colours alone, for help that is printed in place of all else.
  void set_colors(Options& options) const {
    for (const auto& [row, option] : options_)
      if (row->long_name == "--color" && option->count() > 0) (void)row->set(options, option->results()[0]);
    report::use_colors(options.color);
  }

  void set(Options& options) const {
    for (const auto& [row, option] : options_) {
      if (option->count() == 0) continue;
      const std::string& typed = option->results()[0];
      // Else `--layers "$PART"` of a variable that nobody set would take the whole model.
      if (typed.empty() && !row->value_name.empty() && !row->optional_value)
        fail(ErrorCode::Usage, {}, kEmptyValue, row->name());
      if (const std::string fault = row->set(options, typed); !fault.empty())
        fail(ErrorCode::Usage, {}, "{}: {}", row->name(), fault);
    }
  }

 private:
  /// Refuses the first word that CLI11 had no use for, if there is one.
  void refuse_unknown() const {
    std::vector<std::string> left = app_.remaining();
    const bool only_arguments = !left.empty() && left[0] == "--";
    if (only_arguments) left.erase(left.begin());
    if (left.empty()) return;
    const std::string& word = left[0];
    if (!only_arguments && word.size() > 1 && word[0] == '-')
      refuse_option(command_, word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2),
                    Words(left).subspan(1));
    if (!command_.commands.empty()) refuse_command(command_, word);
    fail(ErrorCode::Usage, {}, "'{}' is one argument too many: {}", word, synopsis(command_));
  }

  /// Says what CLI11 found in this program's words. Its text begins with the name of the option.
  [[noreturn]] void refuse(const CLI::ParseError& error) const {
    const std::string text = error.what(), name = text.substr(0, text.find_first_of(": "));
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
      std::vector<std::string> missing;
      for (const auto& [row, option] : options_)
        if (option->get_required() && option->count() == 0) missing.push_back(row->name());
      // Arguments come first.
      std::stable_partition(missing.begin(), missing.end(),
                            [](const std::string& one) { return !one.starts_with('-'); });
      const std::string last = missing.back();
      missing.pop_back();
      fail(ErrorCode::Usage, {}, "{}{}{} {} missing: {}{}", fmt::join(missing, ", "), missing.empty() ? "" : " and ",
           last, missing.empty() ? "is" : "are", synopsis(command_),
           missing.empty() ? said_otherwise(command_.name, last) : "");
    }
    if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr)
      fail(ErrorCode::Usage, {}, "{} and {} exclude each other: give one of them", name,
           text.substr(text.rfind(' ') + 1));
    for (const auto& [row, option] : options_) {
      if (row->value_name.empty() && "--" + name == row->name())
        fail(ErrorCode::Usage, {}, "{} takes no value", row->name());
      if (name == row->name() && option->count() > 1)
        fail(ErrorCode::Usage, {}, "{} was given twice{}", name, list_of_words(*row));
      if (name == row->name()) fail(ErrorCode::Usage, {}, "{} needs a value: {} {}", name, name, row->value_name);
    }
    fail(ErrorCode::Usage, {}, "{}", text);
  }

  /// The way on where one value may be several words.
  static std::string list_of_words(const OptionRow& row) {
    for (const ValueWord& value : row.words)
      if (value.word.find(',') != value.word.npos)
        return fmt::format("; one may be several, between commas: {} {}", row.name(), value.word);
    return {};
  }

  const CommandTable& command_;
  Words words_;
  CLI::App app_;
  std::vector<std::pair<const OptionRow*, CLI::Option*>> options_;
};

/// Takes answers to where the calls look for them.
void spread(Options& options) {
  if (options.report.forward && options.output.empty())
    fail(ErrorCode::Usage, {}, "--forward compares what the experts of A and of B compute; name B, too");
  if (options.run.jobs == 0) options.run.jobs = usable_cores();
  options.convert.from = options.verify.a = options.diff.a = options.report.a = options.forward.from = options.from;
  options.verify.b.decode = options.from.decode;
  options.verify.b.decode_as = options.from.decode_as;
  options.verify.b.encode = options.from.encode;
  options.verify.b.encode_as = options.from.encode_as;
  options.verify.b.drop_optimizer = options.from.drop_optimizer;
  options.verify.b.from_lora = options.from.from_lora;
  options.verify.b.adapted_config = options.from.config_file;
  options.report.b = options.diff.b = options.verify.b;
  options.report.tensors = options.diff.tensors;
  options.convert.compute = options.verify.compute = options.forward.compute = options.report.compute = options.compute;
  options.convert.seed = options.verify.subset.seed;
  options.forward.checkpoint = options.input;
}

bool answer_with(const std::string& text) {
  print_out(text);
  return false;
}

/// The answers of the commands about the program itself.
std::string answer(const CommandTable& program, const Options& options) {
  if (!options.shell.empty()) return completion_script(options.shell, program);
  if (options.manual) return man_page(program, GLU_CKPT_VERSION);
  if (options.page == "cli") return options_page(program);
  if (options.page == "errors") return errors_page(program.name);
  if (options.paths.size() == 1 && command_named(program, options.paths[0]) == nullptr)
    if (const auto text = error_help(options.paths[0], program.name)) return *text;
  const CommandTable* topic = &program;
  for (const std::string& word : options.paths) {
    const CommandTable* below = command_named(*topic, word);
    if (below == nullptr) {
      if (&word != &options.paths.back()) refuse_topic(*topic, word);
      if (const auto text = topic_help(*topic, word)) return *text;
      refuse_topic(*topic, word);
    }
    topic = below;
  }
  return help_text(*topic);
}

}  // namespace

bool parse_options(int argc, const char* const* argv, Options& options, const std::string& program) {
  const CommandTable table = command_table(program);
  const std::vector<std::string> all(argv + std::min(argc, 1), argv + argc);
  const CommandTable* command = &table;
  Words words = all;
  for (; !words.empty(); words = words.subspan(1)) {
    const CommandTable* below = command_named(*command, words[0]);
    if (below == nullptr) break;
    command = below;
  }
  if (all == std::vector<std::string>{"version"})
    return parse_options(2, std::array{argv[0], "--version"}.data(), options, program);
  if (words.empty() && !command->commands.empty()) {
    report::tell("{}\n", help_text(*command, HelpLength::Short));
    fail(ErrorCode::Usage, {}, "no command was given");
  }
  options.command = command_words(*command);
  options.words = all;
  const std::vector<std::string> joined =
      command->name == program + " help" ? with_topics_last(*command, words) : joined_rules(*command, words);
  Parser parser(*command, joined, program + " " GLU_CKPT_VERSION);
  try {
    parser.parse(options);
  } catch (const CLI::CallForHelp&) {
    parser.set_colors(options);
    const bool is_whole = std::ranges::find(words, "--help") != words.end();
    return answer_with(help_text(*command, is_whole ? HelpLength::Whole : HelpLength::Short));
  } catch (const CLI::CallForVersion& version) {
    return answer_with(std::string(version.what()) + "\n");
  }
  parser.set_colors(options);
  parser.set(options);
  set_parser_memory(options.run.memory_bytes);
  options.remote_memory_bytes = reserve_remote_memory(options.run.memory_bytes);
  options.run.memory_bytes -= options.remote_memory_bytes;
  if (command->execute == nullptr && command->commands.empty()) return answer_with(answer(table, options));
  if (command->execute == nullptr) fail(ErrorCode::Usage, {}, "no command was given; `{} --help` lists them", program);
  if (options.dry_run) options.command = "plan";
  options.execute = options.dry_run ? cmd_plan : command->execute;
  if (options.paths.size() == 1 && options.input.empty()) options.input = options.paths[0];
  if (options.paths.size() > 1) options.source.clear();
  spread(options);
  return true;
}

}  // namespace glu_ckpt::cli
