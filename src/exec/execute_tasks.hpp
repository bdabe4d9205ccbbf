#pragma once
/// The parts of execute() for a process that shares the work with others, or goes on with what an earlier run wrote.

#include <optional>
#include <span>
#include <vector>

#include "exec/make_tasks.hpp"
#include "io/sink.hpp"
#include "ranks/task_queue.hpp"

namespace glu_ckpt {

/// Returns those of the ranges that an earlier run wrote through `sink` whose bytes still hash to their sums. The sink
/// adopts their bytes; all others are to be written again.
std::vector<DoneRange> prove_ranges(std::vector<DoneRange> ranges, const Plan& plan, DurableSink& sink,
                                    const ExecuteOptions& options);

/// Reads the ranges that were written through `sink`, and returns one whose bytes do not hash to its sums; none where
/// all do.
std::optional<DoneRange> first_lost(std::span<const DoneRange> ranges, const DurableSink& sink,
                                    const ExecuteOptions& options);

/// Does what execute() does, but only those `tasks` whose numbers `queue` gives.
RangeSums execute_tasks(const Plan& plan, const Source& source, Sink& sink, const Backend& backend,
                        const ExecuteOptions& options, const TaskPlan& tasks, TaskQueue& queue);

}  // namespace glu_ckpt
