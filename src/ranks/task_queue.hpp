#pragma once
/// Decides which tasks a rank does: chunks of consecutive ones, taken as the rank gets to them.

#include <mutex>
#include <span>
#include <vector>

#include "glu_ckpt/ranks.hpp"

namespace glu_ckpt {

/// Tasks [first, last).
struct TaskRange {
  i64 first = 0;
  i64 last = 0;
  bool operator==(const TaskRange&) const = default;
};

/// Consecutive chunks that make up all tasks. Each has about a fixed share of the bytes that are left, so the first are
/// long runs of a file and the last single tasks: what ranks of different speed do not finish at the same time is one
/// task each. A function of its arguments alone, so every rank makes the same list. `task_bytes` are not negative;
/// tasks of 0 bytes, such as those that an earlier run has done, are in some chunk, too. One rank gets one chunk.
std::vector<TaskRange> divide_tasks(std::span<const i64> task_bytes, int ranks);

/// The tasks of this rank, one at a time and in order within a chunk, to any of its threads: neighbours in a file are
/// written by one rank at about the same time. All ranks make one, of the same tasks, and use it to its end before any
/// calls restart().
class TaskQueue {
 public:
  /// Called by all ranks together.
  TaskQueue(Ranks& ranks, std::span<const i64> task_bytes);
  /// The next task; -1 where there are no more, or a rank has stopped all. Thread safe.
  i64 next();
  /// Gives no more. Thread safe.
  void close();

 private:
  Ranks& ranks_;
  std::vector<TaskRange> chunks_;
  std::mutex mutex_;
  TaskRange current_;
  bool over_ = false;
};

}  // namespace glu_ckpt
