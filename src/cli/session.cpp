#include "cli/session.hpp"

#include <csignal>
#include <cstdio>

#include "core/fail.hpp"
#include "core/json.hpp"
#include "io/directory.hpp"
#include "io/file_names.hpp"
#include "io/staged_dir.hpp"
#include "report/text/tell.hpp"

namespace glu_ckpt::cli {
namespace {

/// There is one for the process, as there is one set of signal handlers.
StopToken stop_token;

void note_signal(int number) { stop_token.request(number); }

report::ProgressStyle progress_style(const Options& options) {
  // Who asks for objects means them; -q leaves them alone on stderr, without notes.
  if (options.progress == ProgressMode::Json) return report::ProgressStyle::Json;
  if (options.quiet || options.progress == ProgressMode::Never) return report::ProgressStyle::None;
  if (report::is_terminal()) return report::ProgressStyle::Bar;
  return options.progress == ProgressMode::Always ? report::ProgressStyle::AllLines : report::ProgressStyle::Lines;
}

/// Readers pass a journal over; people who find one ask what it means.
void tell_of_journal(report::ProgressObserver& observer, const std::filesystem::path& path) {
  const std::filesystem::path journal = path / StagedDir::kJournalName;
  if (link_kind(journal) != PathKind::File) return;
  if (path.string().find(kPartialSuffix) != std::string::npos) {
    const std::string options = StagedDir::options_of(path);
    return observer.note(fmt::format("{}: is no checkpoint yet: it is what a run{} that has not ended wrote so far",
                                     path.string(), options.empty() ? "" : " with '" + options + "'"));
  }
  observer.note(
      fmt::format("{}: a run left it that was killed when it had written all and had renamed it; the checkpoint is "
                  "whole. --resume of that run removes the file, or remove it",
                  journal.string()));
}

}  // namespace

Session::Session(const Options& options)
    : observer_({progress_style(options), !options.quiet, options.verbose}), run_(options.run) {
  if (options.caller != nullptr) {
    run_.observer = options.caller->observer;
    run_.stop = options.caller->stop;
    waiting_.emplace(run_.stop);
    return;
  }
  run_.observer = &observer_;
  run_.stop = &stop_token;
  waiting_.emplace(run_.stop);
  watch_signals();
  for (const std::string& path : {options.input, options.output})
    if (!path.empty()) tell_of_journal(observer_, path);
}

void watch_signals() {
  // A signal that is ignored stays so: nohup, and the background of a shell, mean it.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
    if (std::signal(number, note_signal) == SIG_IGN) std::signal(number, SIG_IGN);
}

std::string with_call(std::string object, const Options& options) {
  JsonWriter json;
  json.begin_object().field("command", options.command);
  for (const auto& [name, path] :
       {std::pair("source", &options.source), std::pair("destination", &options.destination)}) {
    json.key(name);
    if (path->empty())
      json.null();
    else
      json.value(*path);
  }
  const std::string call = json.end_object().text();
  object.erase(object.rfind('}'));
  return object + (object == "{" ? "" : ",") + call.substr(1);
}

void print_out(const Options& options, const std::string& text) {
  const std::string told = options.json ? with_call(text, options) + "\n" : text;
  if (options.caller != nullptr)
    options.caller->out += told;
  else
    print_out(told);
}

void print_out(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) fail(ErrorCode::Io, {}, "cannot write to standard output");
}

}  // namespace glu_ckpt::cli
