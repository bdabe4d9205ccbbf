#pragma once
/// Prints on stderr what a run tells while it works: notes, and a bar on a terminal or a line every ten seconds
/// elsewhere.

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt::report {

/// Lines: one every ten seconds. AllLines: also one at the end of each stage, however short it is. Json: an object a
/// line at the beginning and the end of each stage, and every second between.
enum class ProgressStyle { None, Bar, Lines, AllLines, Json };

/// The progress of a stage.
struct ProgressState {
  std::string title;
  i64 done = 0;
  i64 total = 0;
  double seconds = 0;
  /// The work that its threads spend most time in, or empty.
  std::string bottleneck = {};
};

/// One line: percent, bytes, rate, time left, bottleneck. What does not fit into `columns` is left out, the least
/// important first; without `columns` there is room for all of it, and no bar.
std::string progress_line(const ProgressState& state, std::size_t columns = 0);

/// "42 s", "3 min 20 s", "2 h 5 min".
std::string duration_text(double seconds);

/// Prints what a call reports.
class ProgressObserver final : public Observer {
 public:
  struct Shown {
    ProgressStyle progress = ProgressStyle::None;
    bool notes = true;
    bool details = false;
  };

  explicit ProgressObserver(const Shown& shown) : shown_(shown) {}

  void stage_begins(std::string_view title, i64 bytes) override;
  void advance(i64 bytes, std::string_view bottleneck) override;
  void stage_ends() override;
  void warn(std::string_view sentence) override;
  /// The sentences of all warnings so far.
  const std::vector<std::string>& warnings() const { return warnings_; }
  void note(std::string_view sentence) override;
  void detail(std::string_view sentence) override;

 private:
  void print(bool last, std::string_view bottleneck);
  void clear_bar();

  Shown shown_;
  std::string title_;
  i64 total_ = 0;
  std::atomic<i64> done_{0};
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point printed_;
  bool printed_any_ = false;
  /// The cursor stands behind a bar.
  bool bar_is_shown_ = false;
  std::vector<std::string> warnings_;
  std::mutex mutex_;
};

}  // namespace glu_ckpt::report
