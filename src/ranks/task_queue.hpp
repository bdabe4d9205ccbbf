#pragma once
/// Decides which tasks a rank does: chunks of consecutive ones, taken as the rank gets to them.

#include <cstddef>
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

/// The tasks of this rank, one at a time, to its workers: neighbours in a file are written by one rank at about the
/// same time. For example, of a chunk with tasks of files A, B and C, workers 0 and 1 get those of A and of B, in
/// order; whichever ends first goes on with C, and then with what the other one has left. A write through the page
/// cache locks its file, so two workers at one file wait for each other. All ranks make one, of the same tasks, and use
/// it to its end before any calls restart().
class TaskQueue {
 public:
  /// Called by all ranks together. `files` has the number of the file that each task writes to; without it, tasks are
  /// given in their order.
  TaskQueue(Ranks& ranks, std::span<const i64> task_bytes, std::vector<std::size_t> files = {});
  /// The next task of `worker`, whose number is less than kMaxWorkers; -1 where there are no more, or a rank has
  /// stopped all. Thread safe.
  i64 next(int worker);
  /// Gives no more. Thread safe.
  void close();

 private:
  /// The tasks of one file in the chunk, of which those before `given` are given.
  struct Lane {
    std::vector<i64> tasks;
    std::size_t given = 0;
    int workers = 0;

    std::size_t left() const { return tasks.size() - given; }
  };

  bool take_chunk();
  Lane* choose_lane();

  Ranks& ranks_;
  std::vector<TaskRange> chunks_;
  std::vector<std::size_t> files_;
  std::mutex mutex_;
  std::vector<Lane> lanes_;
  /// Each worker's; null before its first task of a chunk.
  std::vector<Lane*> lane_of_;
  /// Tasks of the chunk that are not given.
  i64 left_ = 0;
  bool over_ = false;
};

}  // namespace glu_ckpt
