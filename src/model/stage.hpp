#pragma once
/// Long calls share this: stages that report how far they are and stop when asked, and the choice of a device.

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/model.hpp"
#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt {

/// One stage of a call, from its making to its end. Copies are not wanted: the observer sees one stage at a time.
class Stage {
 public:
  Stage(const RunOptions& run, std::string_view title, i64 bytes);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  /// Reports finished bytes and throws Interrupted after a request to stop. Thread safe.
  std::function<void(i64)> on_progress();
  /// Threads and memory of the run, with this stage's on_progress().
  ExecuteOptions execute_options();
  /// Returns the times to which the stage's workers add what they spend; the bottleneck that the observer is told comes
  /// from them.
  StageTimes& times() { return times_; }

 private:
  const RunOptions& run_;
  StageTimes times_;
};

/// Worker threads: `run.jobs`, or one per usable core.
int jobs_of(const RunOptions& run);

/// Tells the observer, if there is one.
template <typename... Values>
void tell_note(const RunOptions& run, fmt::format_string<Values...> text, Values&&... values) {
  if (run.observer != nullptr) run.observer->note(fmt::format(text, std::forward<Values>(values)...));
}
template <typename... Values>
void tell_warning(const RunOptions& run, fmt::format_string<Values...> text, Values&&... values) {
  if (run.observer != nullptr) run.observer->warn(fmt::format(text, std::forward<Values>(values)...));
}
template <typename... Values>
void tell_detail(const RunOptions& run, fmt::format_string<Values...> text, Values&&... values) {
  if (run.observer != nullptr) run.observer->detail(fmt::format(text, std::forward<Values>(values)...));
}

/// The device that `run` names; for "auto" the one that is faster for that plan, and the observer is told why. Without
/// a plan bytes are only hashed or compared, for which there is no choice to tell of. `computes`:
/// BackendOptions::computes.
std::unique_ptr<Backend> open_backend(const RunOptions& run, const Plan* plan = nullptr, bool computes = false);

/// Has what the files say of their own bytes checked while they are read, up to check_contents().
void watch_contents(const Source& source);

/// Checks what the files say of their own bytes (Source::content_check), as a stage of this title: what has not passed
/// since watch_contents().
void check_contents(const RunOptions& run, const Source& source, std::string_view title);

/// Throws GluConflict where the optimizer's master weights contradict the answers (check_optimizer_order). Reads a
/// sample of rows.
void check_master_weights(const RunOptions& run, const Checkpoint& checkpoint, const SourceAnswers& answers);

}  // namespace glu_ckpt
