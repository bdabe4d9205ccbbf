#pragma once
/// One command's run in this process: what it shows while it works, and the signals that stop it.

#include <memory>
#include <optional>
#include <string>

#include "cli/options.hpp"
#include "remote/stoppable_wait.hpp"
#include "report/text/progress.hpp"

namespace glu_ckpt::cli {

/// Shows notes and progress on stderr as far as the options ask for them, and stops the call at a signal.
class Session {
 public:
  /// Makes SIGINT, SIGTERM, SIGHUP and SIGUSR1 are noticed at the next finished piece of work, where there is no caller
  /// to do so.
  explicit Session(const Options& options);

  /// The options' own, with this session's observer and token. Valid as long as the session.
  const RunOptions& run() const { return run_; }
  /// The warnings of what has run.
  const std::vector<std::string>& warnings() const { return observer_.warnings(); }

 private:
  report::ProgressObserver observer_;
  RunOptions run_;
  std::optional<WaitingCall> waiting_;
};

/// Makes the page that the options ask for and writes it to its file.
HtmlReport write_report(const Options& options, const Session& session);

/// Makes the signals request a stop of whatever Session runs in this process.
void watch_signals();

/// A JSON object with the fields that every result and error has, too: the command and the paths as typed.
std::string with_call(std::string object, const Options& options);

/// Prints to stdout and checks that it arrived.
void print_out(const std::string& text);
/// Prints the text, or hands it to the caller, where there is one. With --json it is an object: with_call().
void print_out(const Options& options, const std::string& text);

}  // namespace glu_ckpt::cli
