/// The parser: it reads a command line by the table of commands and options.

#include "cli/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "cli/command_table.hpp"
#include "cli/option_values.hpp"
#include "cli/session.hpp"
#include "core/fail.hpp"
#include "core/usable_cores.hpp"
#include "report/text/tell.hpp"

namespace glu_ckpt::cli {
namespace {

using Words = std::span<const std::string>;

/// A row that was given, and its value as typed.
struct GivenOption {
  const OptionRow* row;
  std::string value;
};

const CommandTable* command_named(const CommandTable& command, const std::string& word) {
  for (const CommandTable* one : subcommands(command))
    if (one->name.substr(command.name.size() + 1) == word) return one;
  return nullptr;
}

[[noreturn]] void refuse_command(const CommandTable& command, const std::string& word) {
  std::vector<std::string> known;
  for (const CommandTable* one : subcommands(command)) known.push_back(one->name.substr(command.name.size() + 1));
  fail(ErrorCode::Usage, {}, "'{}' is not a command{}", word, suggestion(word, known));
}

/// `name` is "--quiet" or "-q".
const OptionRow* option_named(const CommandTable& command, const std::string& name) {
  for (const OptionRow* row : all_options(command))
    if (row->long_name == name || row->short_name == name) return row;
  return nullptr;
}

/// Options that other programs have for what is said otherwise here.
constexpr std::pair<std::string_view, std::string_view> kSaidOtherwise[] = {
    {"--output", "DST is the second argument"},
    {"--out", "DST is the second argument"},
    {"-o", "DST is the second argument"},
    {"--input", "SRC is the first argument"},
    {"--dtype", "dtypes stay as they are; --decode makes quantized weights bf16 or f32"},
    {"--layers", "a part of a model is not converted"},
};

[[noreturn]] void refuse_option(const CommandTable& command, const std::string& name, Words behind) {
  if (!command.commands.empty())
    for (std::size_t i = 0; i < behind.size(); ++i)
      if (const CommandTable* later = command_named(command, behind[i]); later != nullptr)
        fail(ErrorCode::Usage, {}, "{} belongs behind the command: {} {} {}", name, later->name, name,
             fmt::join(behind.subspan(i + 1), " "));
  const auto otherwise = std::ranges::find(kSaidOtherwise, name, [](const auto& pair) { return pair.first; });
  std::vector<std::string> known;
  for (const OptionRow* row : all_options(command)) known.push_back(row->long_name);
  std::string way = suggestion(name, known);
  if (command_words(command) == "convert" || command_words(command) == "plan")
    if (otherwise != std::end(kSaidOtherwise)) way = fmt::format("; {}", otherwise->second);
  if (way.empty()) way = fmt::format("; `{} --help` lists its options", command.name);
  fail(ErrorCode::Usage, {}, "{} is no option of {}{}", name, command.name, way);
}

/// The options and arguments among the words.
std::vector<GivenOption> match(const CommandTable& command, Words words) {
  std::vector<GivenOption> given;
  std::size_t position = 0;
  bool only_arguments = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!only_arguments && word == "--") {
      only_arguments = true;
      continue;
    }
    if (only_arguments || word.size() < 2 || word[0] != '-') {
      if (!command.commands.empty()) refuse_command(command, word);
      if (position == command.arguments.size())
        fail(ErrorCode::Usage, {}, "'{}' is one argument too many: {}", word, synopsis(command));
      const OptionRow& row = command.arguments[position];
      given.push_back({&row, word});
      if (!row.many) ++position;
      continue;
    }
    const std::size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    // Short options may stand behind one dash, the last one with its value: -qj4.
    for (std::size_t at = 1; at < word.size(); ++at) {
      const bool is_long = word.starts_with("--");
      const std::string name = is_long ? word.substr(0, equals) : std::string("-") + word[at];
      const OptionRow* row = option_named(command, name);
      if (row == nullptr) refuse_option(command, name, words.subspan(i + 1));
      const bool takes_value = !row->value_name.empty();
      std::optional<std::string> value;
      if (is_long && equals != word.npos) value = word.substr(equals + 1);
      if (!is_long && takes_value && at + 1 < word.size()) value = word.substr(at + 1);
      if (value && !takes_value) fail(ErrorCode::Usage, {}, "{} takes no value", name);
      if (takes_value && !value) {
        const auto plain = [](const std::string& other) { return other.size() < 2 || other[0] != '-'; };
        const Words rest = words.subspan(i + 1);
        const auto wanted = std::ranges::count_if(command.arguments, [&](const OptionRow& argument) {
          return argument.required && std::ranges::find(given, &argument, &GivenOption::row) == given.end();
        });
        const bool may_take =
            !row->optional_value || (!rest.empty() && plain(rest[0]) && std::ranges::count_if(rest, plain) > wanted);
        if (may_take && rest.empty())
          fail(ErrorCode::Usage, {}, "{} needs a value: {} {}", name, name, row->value_name);
        if (may_take) value = words[++i];
      }
      given.push_back({row, value.value_or("")});
      if (is_long || takes_value) break;
    }
  }
  return given;
}

/// Refuses what is missing, given twice, or given beside what it does not go with.
void check_together(const CommandTable& command, const std::vector<GivenOption>& given) {
  const auto count = [&](const std::string& name) {
    return std::ranges::count(given, name, [](const GivenOption& one) { return one.row->name(); });
  };
  const auto is_given = [&](const std::string& name) { return count(name) > 0; };
  std::vector<std::string> missing;
  for (const OptionRow& row : command.arguments)
    if (row.required && !is_given(row.name())) missing.push_back(row.name());
  for (const OptionRow* row : all_options(command))
    if (row->required && !is_given(row->name())) missing.push_back(row->name());
  if (!missing.empty())
    fail(ErrorCode::Usage, {}, "{} {} missing: {}", fmt::join(missing, " and "), missing.size() == 1 ? "is" : "are",
         synopsis(command));
  for (const GivenOption& one : given) {
    const std::string& name = one.row->name();
    if (!one.row->value_name.empty() && !one.row->many && count(name) > 1)
      fail(ErrorCode::Usage, {}, "{} was given twice", name);
    if (!one.row->needs.empty() && std::ranges::none_of(one.row->needs, is_given))
      fail(ErrorCode::Usage, {}, "{} needs {}", name, fmt::join(one.row->needs, " or "));
    for (const std::string& other : one.row->excludes)
      if (is_given(other)) fail(ErrorCode::Usage, {}, "{} and {} exclude each other: give one of them", name, other);
  }
}

/// Takes answers to where the calls look for them.
void spread(Options& options) {
  if (options.report.forward && options.output.empty())
    fail(ErrorCode::Usage, {}, "--forward compares what the experts of A and of B compute; name B, too");
  if (options.run.jobs == 0) options.run.jobs = usable_cores();
  options.convert.from = options.verify.a = options.diff.a = options.report.a = options.forward.from = options.from;
  options.verify.b.decode = options.from.decode;
  options.verify.b.decode_as = options.from.decode_as;
  options.verify.b.encode_mxfp8 = options.from.encode_mxfp8;
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

/// The paths that a command is about: those that it must have, or may have several of, and what comes second.
void note_paths(const CommandTable& command, const std::vector<GivenOption>& given, Options& options) {
  for (const GivenOption& one : given) {
    const bool is_first = !command.arguments.empty() && one.row == &command.arguments[0];
    if (is_first && (one.row->required || one.row->many) && command.execute != nullptr) options.source = one.value;
    if (command.arguments.size() > 1 && one.row == &command.arguments[1]) options.destination = one.value;
  }
}

/// The answers of the commands about the program itself.
std::string answer(const CommandTable& program, const Options& options) {
  if (!options.shell.empty()) return completion_script(options.shell, program);
  if (options.manual) return man_page(program, GLU_CKPT_VERSION);
  const CommandTable* topic = &program;
  for (const std::string& word : options.paths) {
    const CommandTable* below = command_named(*topic, word);
    if (below == nullptr) refuse_command(*topic, word);
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
    report::tell("{}\n", help_text(*command));
    fail(ErrorCode::Usage, {}, "no command was given");
  }
  options.command = command_words(*command);
  const Words options_part(words.begin(), std::ranges::find(words, "--"));
  for (const char* help : {"-h", "--help"})
    if (std::ranges::find(options_part, help) != options_part.end()) return answer_with(help_text(*command));
  const std::vector<GivenOption> given = match(*command, words);
  note_paths(*command, given, options);
  check_together(*command, given);
  for (const GivenOption& one : given)
    if (const std::string fault = one.row->set(options, one.value); !fault.empty())
      fail(ErrorCode::Usage, {}, "{}: {}", one.row->name(), fault);
  if (options.version) return answer_with(program + " " GLU_CKPT_VERSION "\n");
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
