#pragma once
/// What several commands do alike: opening, recognizing, progress, stopping on a signal.

#include <memory>
#include <string>

#include "cli/options.hpp"
#include "glu_ckpt/verify_forward.hpp"
#include "report/progress.hpp"

namespace glu_ckpt::cli {

/// A source and what was recognized in it.
struct Opened {
  std::unique_ptr<Source> source;
  Recognition recognition;
  Model model() const { return {source.get(), &recognition}; }
};

/// Throws `error` again: with the file of the source that it is about and, where the source is broken and holds the
/// tensor at fault, the byte at which that begins. An error that names a file stays as it is.
[[noreturn]] void fail_with_place(const Error& error, const Source& source);

/// What `work` returns, which knows a source's names, shapes and records alone.
template <typename Work>
auto with_place(const Source& source, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    fail_with_place(error, source);
  }
}

Opened open_model(const std::string& path, const SourceAnswers& answers);

/// Throws UnknownGlu where the order of gate and up of any layer is unknown; `option` names the way to
/// say it.
void require_known_glu(const Opened& opened, const std::string& option);

/// The same of one layer.
void require_known_glu(const Opened& opened, const ExpertBlock& block, const std::string& option);

bool has_unknown_glu(const Recognition& recognition);

/// The device that --device names; for auto the one that is faster for so many gathered bytes, 0 where bytes are only
/// hashed. With -v says on stderr why.
std::unique_ptr<Backend> open_backend(const Options& options, i64 gathered);

/// Where --device has the experts run. For auto on the CPU: with a few tokens for each expert the weights pass through
/// once, and they have to be read by the CPU first.
std::unique_ptr<MlpRunner> open_runner(const Options& options);

report::ProgressStyle progress_style(const Options& options);

/// Execution options that report to `progress` and throw Interrupted after a signal.
ExecuteOptions execute_options(const Options& options, report::Progress& progress);

/// From here on SIGINT, SIGTERM, SIGHUP and SIGUSR1 are noticed at the next finished piece of work.
void watch_signals();

/// Checks what the files say of their own bytes (Source::content_check), with progress.
void check_contents(const Options& options, const Source& source, const std::string& title);

/// Throws GluConflict where the optimizer's master weights contradict the answers (check_twins). Reads a sample of
/// rows; with -v says on stderr what it told.
void check_twin_orders(const Options& options, const Opened& opened, const SourceAnswers& answers);

/// How to run the experts of both models, whose config.json must not disagree about it; where only one has a
/// config.json, that speaks for both. Throws Usage, and what choose_activation() and forward_bytes() throw.
VerifyForwardOptions forward_options(const Options& options, const Opened& a, const Opened& b);

/// verify_forward() with progress; with -v says on stderr how fast.
std::vector<LayerForward> run_forward(const Options& options, const Opened& a, const Opened& b, MlpRunner& runner,
                                      VerifyForwardOptions forward);

/// Prints to stdout and checks that it arrived.
void print_out(const std::string& text);

i64 tensor_bytes(const Inventory& inventory);

/// compute_digest() with a progress of this title.
Digest digest_with_progress(const Options& options, const Model& model, const Backend& backend,
                            const std::string& title);

}  // namespace glu_ckpt::cli
