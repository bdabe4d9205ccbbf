#pragma once
/// How far long work is, on stderr: a bar on a terminal, a line every ten seconds elsewhere.

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>

#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt::report {

enum class ProgressStyle { None, Bar, Lines, Json };

class Progress {
 public:
  /// With `times`, says which stage the work spends most of its time in.
  Progress(ProgressStyle style, std::string title, i64 total_bytes, const StageTimes* times = nullptr);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Thread safe.
  void add(i64 bytes);

 private:
  void print(bool last);

  ProgressStyle style_;
  std::string title_;
  i64 total_;
  const StageTimes* times_;
  std::atomic<i64> done_{0};
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point printed_;
  bool printed_any_ = false;
  std::mutex mutex_;
};

}  // namespace glu_ckpt::report
