/// What help, the manual page and the completions say about the parser, and what the parser says to that.
#include "cli/command_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

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
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

std::vector<OptionRow> options_of(const CommandTable& command) {
  std::vector<OptionRow> all;
  for (const OptionGroup& group : command.groups) all.insert(all.end(), group.options.begin(), group.options.end());
  return all;
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

TEST(CommandTable, EveryOptionSaysWhatItsValueIs) {
  // What CLI11 says where nobody said it.
  const std::set<std::string> unnamed = {"TEXT", "INT", "UINT", "FLOAT", "TEXT ..."};
  for (const CommandTable* command : all_commands(program()))
    for (const OptionRow& option : options_of(*command)) {
      EXPECT_FALSE(unnamed.contains(option.value_name)) << command->name << " " << option.long_name;
      EXPECT_FALSE(option.about.empty()) << command->name << " " << option.long_name;
    }
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
  const auto message = [](const std::vector<std::string>& words) {
    try {
      parse(words);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
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
