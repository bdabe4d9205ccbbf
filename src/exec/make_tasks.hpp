#pragma once
/// Cuts a plan's outputs into the ranges that workers produce.

#include <span>
#include <vector>

#include "glu_ckpt/execute.hpp"
#include "plan/clone_parts.hpp"

namespace glu_ckpt {

/// A task makes bytes [begin, end) of output `tensor`. Where some of the tensor can be cloned, they may be more than a
/// buffer holds.
struct Task {
  std::size_t tensor = 0;
  i64 begin = 0;
  i64 end = 0;
  /// Some of its runs are shorter than a page.
  bool short_runs = false;
};

/// The threads of a conversion, and the bytes that each of their two buffers holds.
struct WorkerPlan {
  int workers = 1;
  i64 buffer_bytes = 0;
  /// A worker makes a task in parts of so many bytes, which stay in its cache; 0 where it makes each as a whole.
  i64 part_bytes = 0;
};

/// The plan has as many workers as the backend wants, but no more than have room for the longest span each: a buffer
/// that holds part of an expert costs more than a worker brings.
WorkerPlan plan_workers(const Plan& plan, const Backend& backend, const ExecuteOptions& options);

/// Cuts ranges of a tensor into tasks that hold no more than `buffer_bytes`, unless one leaf does; in order.
std::vector<Task> cut_tasks(const Plan& plan, std::size_t tensor, std::span<const ByteRange> ranges,
                            const Backend& backend, i64 buffer_bytes, const ModelLeaves* leaves);

/// The tasks for all bytes but those of `options.done`, in the order of the outputs. Tensors that options.clones has
/// are cut into long tasks, others as cut_tasks() does.
std::vector<Task> make_tasks(const Plan& plan, const Backend& backend, i64 buffer_bytes, const ExecuteOptions& options);

/// Reorders tasks that are in the order of the outputs: their files take turns, `files_at_once` at a time, and within a
/// file the order stays. So every chunk of a TaskQueue has work in as many files. A write through the page cache locks
/// its file: sixteen threads that write to one file are slower than one (2.4 against 3.0 GB/s on a tmpfs), and to
/// sixteen files ten times faster.
std::vector<Task> spread_over_files(const std::vector<Task>& tasks, const Plan& plan, int files_at_once);

/// A plan cut for the workers that will take its tasks.
struct TaskPlan {
  WorkerPlan workers;
  std::vector<Task> tasks;
};

/// The bytes of each.
std::vector<i64> task_bytes(std::span<const Task> tasks);

/// The number of the file that each writes to.
std::vector<std::size_t> files_of(std::span<const Task> tasks, const Plan& plan);

/// The tasks that execute() makes of a plan, spread over as many files as there are workers. A process that shares the
/// work with others gives its tasks to all of them.
TaskPlan plan_tasks(const Plan& plan, const Backend& backend, const ExecuteOptions& options);

}  // namespace glu_ckpt
