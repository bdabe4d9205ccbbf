#include "cli/run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>

#include "cli/session.hpp"
#include "core/fail.hpp"
#include "report/report.hpp"
#include "report/text/tell.hpp"

namespace glu_ckpt::cli {

std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

namespace {

/// The value of an option that is asked for.
std::string_view placeholder(std::string_view option) {
  // Options that have one value with which the conversion goes on.
  constexpr std::pair<std::string_view, std::string_view> kValues[] = {
      {"--resume", ""},         {"--grow-rank", ""},   {"--allow-narrowing", ""}, {"--consume-source", ""},
      {"--optimizer", " drop"}, {"--decode", " bf16"}, {"--unknown", " keep"}};
  for (const auto& [name, value] : kValues)
    if (name == option) return value;
  return option.ends_with("config") ? " FILE" : " ORDER";
}

/// The command line once more, quoted, with placeholders for what was not said.
std::vector<std::string> completed(const std::vector<std::string>& words, const std::vector<std::string>& missing) {
  constexpr std::string_view kTarget = "--to";
  std::vector<std::string> line;
  const bool asks_type = std::ranges::find(missing, kTarget) != missing.end();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool is_target = i > 0 && words[i - 1] == kTarget;
    if (asks_type && is_target)
      line.emplace_back("hf:TYPE");
    else
      line.push_back(asks_type && words[i] == "--to=hf" ? "--to=hf:TYPE" : quoted(words[i]));
  }
  for (const std::string& option : missing) {
    if (option == kTarget || std::ranges::find(words, option) != words.end()) continue;
    line.push_back(option + std::string(placeholder(option)));
  }
  return line;
}

}  // namespace

ExitStatus report_error(const std::string& program, const Error& error, const Options& options, bool json,
                        const std::vector<std::string>& words) {
  if (json)
    report::tell("{}\n", with_call(report::error_json(error), options));
  else
    report::tell("{}: {} {} [{}]\n", program, report::painted(report::Paint::Error, "error:"),
                 report::printable(error.what()), slug(error.code()));
  if (!json && !words.empty() && !error.missing_options().empty()) {
    std::string line = fmt::format("  {}", program);
    for (const std::string& word : completed(words, error.missing_options()))
      line += fmt::format(" {}", report::printable(word));
    report::tell("{}\n", line);
  }
  return exit_status(error.code());
}

ExitStatus for_each_path(const Options& options, Execute execute) {
  if (options.paths.size() == 1) return execute(options);
  auto status = ExitStatus::Done;
  for (const std::string& path : options.paths) {
    Options one = options;
    one.source = one.input = path;
    auto ended = ExitStatus::Done;
    if (!options.json && !options.quiet)
      print_out(options, fmt::format("{}{}:\n", path == options.paths.front() ? "" : "\n", report::printable(path)));
    try {
      ended = execute(one);
    } catch (...) {
      const Error error = current_error();
      if (error.code() == ErrorCode::Interrupted) throw;
      ended = report_error("glu-ckpt", error, one, options.json);
    }
    status = std::max(status, ended);
  }
  return status;
}

bool wants_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--json") return true;
  return false;
}

void prepare_process() {
  // A stream that was closed is still nobody else's: the next file that is opened would get its number, and what is
  // printed. Open for reading, so that printing fails as before.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", O_RDONLY);
  // A file size limit is an error to report, not a reason to vanish.
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace glu_ckpt::cli
