#pragma once
/// How a plan's outputs are cut into the ranges that workers produce.

#include <functional>
#include <span>
#include <vector>

#include "glu_ckpt/execute.hpp"
#include "plan/clone_parts.hpp"

namespace glu_ckpt {

/// Bytes [begin, end) of output `tensor`. Where some of the tensor can be cloned, they may be more than a buffer holds.
struct Task {
  std::size_t tensor = 0;
  i64 begin = 0;
  i64 end = 0;
  /// Some of its runs are shorter than a page.
  bool short_runs = false;
};

/// The threads of a conversion and what each of their two buffers holds.
struct Crew {
  int workers = 1;
  i64 buffer_bytes = 0;
};

/// As many workers as the backend wants, but no more than have room for the longest stretch each: a buffer that holds
/// part of an expert costs more than a worker brings.
Crew make_crew(const Plan& plan, const Backend& backend, const ExecuteOptions& options);

/// Ranges of a tensor as tasks that hold no more than `buffer_bytes`, unless one leaf does; in order.
std::vector<Task> cut_tasks(const Plan& plan, std::size_t tensor, std::span<const ByteRange> ranges,
                            const Backend& backend, i64 buffer_bytes, const LeafHasher* leaves);

/// All bytes but those of `options.done`, in the order of the outputs: what options.clones has in long tasks, the rest
/// as cut_tasks() does.
std::vector<Task> make_tasks(const Plan& plan, const Backend& backend, i64 buffer_bytes, const ExecuteOptions& options);

/// The tasks that execute() makes of a plan. Whoever shares them with other processes gives theirs to all.
std::vector<Task> make_tasks(const Plan& plan, const Backend& backend, const ExecuteOptions& options);

/// execute() of those `tasks` whose numbers `next` gives, until it gives a negative one; any thread calls it.
RangeSums execute_tasks(const Plan& plan, const Source& source, Sink& sink, const Backend& backend,
                        const ExecuteOptions& options, std::span<const Task> tasks, const std::function<i64()>& next);

}  // namespace glu_ckpt
