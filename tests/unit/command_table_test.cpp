/// The table of commands and options, what is printed of it, and the parser that reads it.
#include "cli/command_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "cli/error_help.hpp"
#include "cli/options.hpp"

namespace glu_ckpt::cli {
namespace {

const CommandTable& program() {
  static const CommandTable table = command_table();
  return table;
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

std::optional<Options> parse(std::vector<std::string> words) {
  words.insert(words.begin(), "glu-ckpt");
  std::vector<const char*> argv;
  argv.reserve(words.size());
  for (const std::string& word : words) argv.push_back(word.c_str());
  Options options;
  return parse_options(static_cast<int>(argv.size()), argv.data(), options) ? std::optional(options) : std::nullopt;
}

std::vector<OptionRow> options_of(const CommandTable& command) {
  std::vector<OptionRow> all;
  for (const OptionRow* row : all_options(command)) all.push_back(*row);
  return all;
}

const CommandTable& command(const std::string& words) {
  for (const CommandTable* one : all_commands(program()))
    if (command_words(*one) == words) return *one;
  throw std::out_of_range(words);
}

/// What is wrong with the words.
std::string message(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Usage);
    return error.what();
  }
  return "accepted";
}

/// The least that the command accepts.
std::vector<std::string> least_words(const CommandTable& command) {
  std::vector<std::string> words = split_words(command_words(command));
  for (const OptionRow& argument : command.arguments)
    if (argument.required) words.push_back(argument.words.empty() ? "x" : argument.words.front().word);
  for (const OptionRow& option : options_of(command))
    if (option.required) words.insert(words.end(), {option.long_name, "x"});
  return words;
}

TEST(CommandTable, HasEveryCommand) {
  std::set<std::string> names;
  for (const CommandTable* command : all_commands(program())) names.insert(command_words(*command));
  for (const char* name :
       {"", "inspect", "convert", "plan", "verify", "digest", "check", "stamp", "forward", "bench", "bench kernels",
        "bench forward", "bench convert", "layouts", "doctor", "help", "completion"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(CommandTable, HelpIsAtMostEightyColumnsWide) {
  for (const CommandTable* command : all_commands(program())) {
    std::istringstream text(help_text(*command));
    for (std::string line; std::getline(text, line);) {
      EXPECT_LE(line.size(), kHelpColumns) << command->name << ": " << line;
      EXPECT_FALSE(line.ends_with(' ')) << command->name << ": " << line;
    }
  }
}

TEST(CommandTable, EveryOptionHasAMeaningAndItsNameOnce) {
  for (const CommandTable* command : all_commands(program())) {
    std::set<std::string> names;
    for (const OptionRow& option : options_of(*command)) {
      EXPECT_FALSE(option.about.empty()) << command->name << " " << option.long_name;
      EXPECT_EQ(option.set == nullptr, option.long_name == "--help" || option.long_name == "--version")
          << command->name << " " << option.long_name;
      for (const std::string& name : {option.long_name, option.short_name})
        EXPECT_TRUE(name.empty() || names.insert(name).second) << command->name << " " << name;
      for (const auto& others : {option.needs, option.excludes})
        for (const std::string& other : others)
          EXPECT_TRUE(std::ranges::any_of(options_of(*command), [&](const auto& row) { return row.name() == other; }))
              << command->name << " " << option.long_name << " " << other;
    }
  }
}

/// A value that the option takes and that is not its default.
std::string other_value(const OptionRow& option) {
  if (option.value_name == "SIZE") return "3MiB";
  if (option.value_name == "ORDER") return "interleaved:4";
  if (option.value_name == "FILE") return "config.json";
  if (option.value_name == "FIRST-LAST") return "0-3";
  if (option.value_name == "ADAPTER") return "adapter";
  if (option.value_name == "RULE...") return "*=bf16";
  if (option.value_name == "N") return "64";
  if (option.value_name == "PATH") return "donor";
  if (option.value_name == "LIST") return "0-7";
  for (const ValueWord& value : option.words)
    if (value.word != option.default_text) return value.word;
  return {};
}

// A run that is resumed must have the same options as far as they decide about the output's bytes. These do not: they
// are about the machine, or what is checked, or are compared for themselves (--overwrite).
TEST(CommandTable, EveryOptionThatDecidesAboutBytesIsRecorded) {
  const std::set<std::string> others = {"--dry-run",   "--verify", "--reflink",        "--force",
                                        "--overwrite", "--resume", "--consume-source", "--part"};
  int recorded = 0;
  for (const OptionGroup& group : command("convert").groups) {
    if (!group.title.starts_with("What DST") && !group.title.starts_with("What the source") &&
        !group.title.starts_with("How DST"))
      continue;
    for (const OptionRow& option : group.options) {
      if (others.contains(option.long_name)) continue;
      std::vector<std::string> words = {"convert", "a", "b", option.long_name};
      if (!option.value_name.empty()) words.push_back(other_value(option));
      std::string name = option.long_name.substr(2);
      std::ranges::replace(name, '-', '_');
      EXPECT_TRUE(option_texts(parse(words)->convert).contains(name)) << option.long_name;
      ++recorded;
    }
  }
  EXPECT_GE(recorded, 21);
}

TEST(CommandTable, EveryErrorHasItsTexts) {
  for (const std::string& slug : error_slugs()) {
    const std::string text = error_help(slug, "glu-ckpt").value_or("");
    EXPECT_NE(text.find("\nCause:\n"), text.npos) << slug;
    EXPECT_NE(text.find("\nWays out:\n"), text.npos) << slug;
    EXPECT_EQ(error_help("[" + slug + "]", "glu-ckpt"), text);
    const std::size_t example = text.find("  glu-ckpt ");
    if (example == text.npos) continue;
    const std::string word = text.substr(example + 11, text.find_first_of(" \n", example + 11) - example - 11);
    EXPECT_NO_THROW(command(word)) << slug << ": its example is of no command";
  }
  EXPECT_FALSE(error_help("no-such-error", "glu-ckpt").has_value());
}

TEST(CommandTable, TheShortHelpHasEveryOption) {
  for (const CommandTable* one : all_commands(program())) {
    const std::string text = help_text(*one, HelpLength::Short);
    for (const OptionRow& option : options_of(*one)) EXPECT_NE(text.find(option.long_name), text.npos) << one->name;
  }
}

TEST(CommandTable, OptionsAreReadAsOtherProgramsReadThem) {
  EXPECT_EQ(parse({"plan", "-qj4", "a", "b"})->run.jobs, 4);
  EXPECT_EQ(parse({"plan", "a", "--max-memory=2MiB", "b", "-j", "4"})->run.memory_bytes, 2 << 20);
  EXPECT_EQ(parse({"plan", "a", "--", "--b"})->output, "--b");
  EXPECT_EQ(parse({"plan", "--offset", "-1", "a", "b"})->compute.activation.offset, -1);
  EXPECT_EQ(parse({"convert", "a", "b", "--dry-run"})->command, "plan");
  EXPECT_EQ(parse({"inspect", "--tensors", "a"})->input, "a");
  EXPECT_EQ(parse({"inspect", "--tensors", "*x*", "a"})->tensors, "*x*");
  EXPECT_EQ(parse({"inspect", "a", "--tensors", "*x*"})->tensors, "*x*");
  EXPECT_EQ(parse({"inspect", "a", "b", "--tensors"})->paths.size(), 2U);
  EXPECT_EQ(parse({"digest", "a", "[b,c]", "--", "-d"})->paths, (std::vector<std::string>{"a", "[b,c]", "-d"}));
  EXPECT_EQ(message({"plan", "a", "b", "-j0"}), "--jobs: '0' is not a number from 1 to 1024");
  EXPECT_EQ(message({"plan", "a", "b", "--alpha", "x"}), "--alpha: 'x' is not a number");
  EXPECT_EQ(message({"plan", "a", "b", "--max-memory", "1K"}), "--max-memory: '1K' is too little: at least 1MiB");
  EXPECT_EQ(message({"plan", "a", "b", "--quiet=yes"}), "--quiet takes no value");
  EXPECT_EQ(message({"plan", "a", "b", "--to"}), "--to needs a value: --to TARGET");
  EXPECT_EQ(message({"plan", "a", "b", "--to="}), "--to is empty: is the variable that it comes from set?");
  EXPECT_EQ(message({"plan", "a", "b", "--dtype"}), "--dtype needs a value: --dtype RULE...");
  EXPECT_EQ(message({"plan", "a", "b", "--to", "hf", "--to=hf"}), "--to was given twice");
  EXPECT_EQ(message({"plan", "a", "b", "c"}), "'c' is one argument too many: glu-ckpt plan [OPTIONS] SRC DST");
  EXPECT_EQ(message({"plan"}), "SRC and DST are missing: glu-ckpt plan [OPTIONS] SRC DST");
  EXPECT_EQ(message({"verify", "a", "b", "--seed", "1"}), "--seed needs --forward or --sample");
  EXPECT_EQ(message({"verify", "a", "b", "--sample", "5%", "--forward"}),
            "--sample and --forward exclude each other: give one of them");
  EXPECT_EQ(message({"plan", "a", "b", "--output", "x"}),
            "--output is no option of glu-ckpt plan; DST is the second argument");
  EXPECT_EQ(message({"plan", "a", "b", "--gluu", "x"}), "--gluu is no option of glu-ckpt plan; did you mean --glu?");
  EXPECT_EQ(message({"--json", "inspect", "a"}), "--json belongs after the command: glu-ckpt inspect --json a");
  EXPECT_EQ(message({"-v"}), "-v is no option of glu-ckpt; -V prints the version, and -v belongs after a command");
}

TEST(CommandTable, RefusesEmptyValuesByName) {
  int refused = 0;
  for (const CommandTable* command : all_commands(program()))
    for (const OptionRow& option : options_of(*command)) {
      if (option.value_name.empty() || option.optional_value || option.required || !option.needs.empty()) continue;
      std::vector<std::string> words = least_words(*command);
      words.insert(words.end(), {option.long_name, ""});
      EXPECT_EQ(message(words), option.long_name + " is empty: is the variable that it comes from set?")
          << command->name;
      ++refused;
    }
  EXPECT_GT(refused, 100);
  EXPECT_EQ(message({"plan", "", "b"}), "SRC is empty: is the variable that it comes from set?");
  EXPECT_EQ(message({"report", "a", "", "--html", "x"}), "B is empty: is the variable that it comes from set?");
}

TEST(CommandTable, HelpNamesEveryOptionValueAndDefault) {
  for (const CommandTable* command : all_commands(program())) {
    // Line breaks aside.
    std::string text;
    for (const std::string& word : split_words(help_text(*command))) text += " " + word;
    for (const OptionRow& option : options_of(*command)) {
      EXPECT_NE(text.find(" " + option.long_name), std::string::npos) << command->name << " " << option.long_name;
      if (!option.default_text.empty()) {
        EXPECT_NE(text.find("[default: " + option.default_text + "]"), std::string::npos) << option.long_name;
      }
      for (const ValueWord& value : option.words)
        EXPECT_TRUE(!value.in_help || text.find(" " + value.word) != text.npos)
            << option.long_name << " " << value.word;
    }
  }
}

TEST(CommandTable, EveryCommandHasExamplesThatItAccepts) {
  for (const CommandTable* command : all_commands(program())) {
    EXPECT_FALSE(command->examples.empty()) << command->name;
    for (const std::string& example : command->examples) {
      EXPECT_LE(example.size() + 11, kHelpColumns) << example;
      // Without what the shell does.
      std::vector<std::string> words = split_words(example.substr(0, example.find(" >")));
      if (words.front() == "help" || words.front() == "completion") {
        testing::internal::CaptureStdout();
        EXPECT_EQ(parse(words), std::nullopt) << example;
        EXPECT_FALSE(testing::internal::GetCapturedStdout().empty()) << example;
      } else {
        EXPECT_NO_THROW(EXPECT_TRUE(parse(words).has_value())) << example;
      }
    }
  }
}

TEST(CommandTable, EveryWordThatIsOfferedIsAccepted) {
  // What an option takes in one command it takes in another. The many names of namings are offered for several options,
  // which check them alike.
  std::set<std::string> offered;
  for (const CommandTable* command : all_commands(program())) {
    if (!command->commands.empty()) continue;
    for (const OptionRow& option : options_of(*command))
      for (const ValueWord& value : option.words) {
        if (!offered.insert((value.in_help ? option.long_name + " " : "") + value.word).second) continue;
        std::vector<std::string> words = least_words(*command);
        words.insert(words.end(), {option.long_name, value.word});
        const bool runs_experts = option.long_name == "--activation" || option.long_name == "--compute";
        const std::string name = command_words(*command);
        if ((name == "verify" || name == "report") && runs_experts) words.emplace_back("--forward");
        if (name == "report" && runs_experts) words.emplace_back("B");
        EXPECT_NO_THROW(parse(words)) << command->name << " " << option.long_name << " " << value.word;
        // A shell takes it for one word, between single quotes, too.
        EXPECT_EQ(value.word.find_first_of(" \t'\"\\$`()"), std::string::npos) << value.word;
      }
  }
  EXPECT_GT(offered.size(), 100);
}

TEST(CommandTable, TheManualNamesEverything) {
  std::string page = man_page(program(), "1.2.3");
  std::erase(page, '\\');
  for (const CommandTable* command : all_commands(program())) {
    const bool is_leaf = command->commands.empty();
    EXPECT_TRUE(!is_leaf || page.find(".SS " + command_words(*command) + "\n") != page.npos) << command->name;
    for (const OptionRow& option : options_of(*command)) {
      EXPECT_NE(page.find("fB" + option.long_name + "fR"), std::string::npos) << option.long_name;
      for (const ValueWord& value : option.words)
        EXPECT_TRUE(!value.in_help || page.find("fB" + value.word + "fR") != page.npos) << value.word;
    }
  }
  for (const auto& [name, meaning] : environment_variables())
    EXPECT_NE(page.find("fB" + std::string(name) + "fR"), std::string::npos) << name;
}

TEST(CommandTable, AMistypedValueIsSuggested) {
  EXPECT_EQ(message({"convert", "a", "b", "--format", "safetensor"}),
            "--format: 'safetensor' is not one of keep, safetensors, torch, torch-dist; did you mean safetensors?");
  EXPECT_NE(message({"convert", "a", "b", "--glu", "interleavd:32"}).find("did you mean interleaved:32?"),
            std::string::npos);
  EXPECT_NE(message({"convert", "a", "b", "--to", "megatorn"}).find("did you mean megatron?"), std::string::npos);
  EXPECT_NE(message({"completion", "bsh"}).find("did you mean bash?"), std::string::npos);
  EXPECT_NE(message({"help", "convrt"}).find("did you mean convert?"), std::string::npos);
}

}  // namespace
}  // namespace glu_ckpt::cli
