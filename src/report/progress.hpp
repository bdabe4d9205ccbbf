#pragma once
/// What a run tells while it works, on stderr: notes, and a bar on a terminal or a line every ten seconds elsewhere.

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/run_options.hpp"

namespace glu_ckpt::report {

enum class ProgressStyle { None, Bar, Lines, Json };

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

  Shown shown_;
  std::string title_;
  i64 total_ = 0;
  std::atomic<i64> done_{0};
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point printed_;
  bool printed_any_ = false;
  std::vector<std::string> warnings_;
  std::mutex mutex_;
};

}  // namespace glu_ckpt::report
