#include "exec/make_tasks.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "exec/clone_plan.hpp"
#include "exec/move_parts.hpp"

namespace glu_ckpt {
namespace {

/// Tasks end between elements, of which the longest has so many bytes, so that each element is counted in one of them.
constexpr i64 kElementBytes = 16;

bool has_short_runs(std::span<const Move> moves) {
  return std::ranges::any_of(moves, [](const Move& move) { return move.run_bytes < kDirectRunBytes; });
}

std::span<const Move> moves_of(const Plan& plan, std::size_t tensor) {
  return {plan.moves.data() + plan.first_move[tensor], plan.moves.data() + plan.first_move[tensor + 1]};
}

/// Returns the bytes that a worker should make at a time: a task, or the longest span where runs are short.
i64 longest_task(const Plan& plan, const Backend& backend) {
  i64 longest = 0;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    const std::span<const Move> moves = moves_of(plan, t);
    const bool short_runs = has_short_runs(moves);
    longest = std::max(longest, std::min(plan.outputs[t].bytes, backend.task_bytes(short_runs)));
    if (!short_runs) continue;
    i64 begin = 0;
    for (const i64 end : span_ends(moves)) {
      longest = std::max(longest, end - begin);
      begin = end;
    }
  }
  return longest;
}

/// Cuts one tensor into tasks.
class Cutter {
 public:
  /// `clones` is null unless they have some of the tensor; then they say where it is cut.
  Cutter(const Plan& plan, std::size_t tensor, const Backend& backend, i64 buffer_bytes, const ModelLeaves* leaves,
         const ClonePlan* clones = nullptr)
      : tensor_(tensor), buffer_bytes_(buffer_bytes / kElementBytes * kElementBytes), leaves_(leaves), clones_(clones) {
    const std::span<const Move> moves = moves_of(plan, tensor);
    short_runs_ = has_short_runs(moves);
    size_ = std::min(buffer_bytes_, backend.task_bytes(short_runs_));
    if (short_runs_) ends_ = span_ends(moves);
  }

  void cut(i64 begin, const i64 end, std::vector<Task>& tasks) const {
    while (begin < end) {
      const i64 next = clones_ != nullptr ? clones_->part_end(tensor_, begin, end) : std::min(end, next_end(begin));
      tasks.push_back({tensor_, begin, next, short_runs_});
      begin = next;
    }
  }

 private:
  /// Tensors of short runs are cut between moves, such as experts, as far as a buffer holds them: cut anywhere else, a
  /// transpose reads the pieces of its source that both neighbours want twice. Others are cut between leaves.
  i64 next_end(i64 begin) const {
    const auto after = std::ranges::upper_bound(ends_, begin);
    auto beyond = std::ranges::upper_bound(ends_, begin + size_);
    if (beyond != after) return *std::prev(beyond);
    if (after != ends_.end() && *after <= begin + buffer_bytes_) return *after;
    const i64 wanted = begin + (after == ends_.end() ? size_ : buffer_bytes_);
    if (leaves_ == nullptr) return wanted;
    const i64 between = leaves_->cut(tensor_, begin, wanted);
    return between <= begin + buffer_bytes_ ? between : wanted;
  }

  std::size_t tensor_;
  i64 buffer_bytes_;
  const ModelLeaves* leaves_;
  const ClonePlan* clones_;
  bool short_runs_ = false;
  i64 size_ = 0;
  std::vector<i64> ends_;
};

}  // namespace

WorkerPlan plan_workers(const Plan& plan, const Backend& backend, const ExecuteOptions& options) {
  const i64 wanted = 2 * std::max<i64>(1, longest_task(plan, backend));
  WorkerPlan planned;
  const int threads = options.writes_wait ? backend.workers(options.jobs) : backend.computing(options.jobs);
  planned.workers = static_cast<int>(std::clamp<i64>(options.memory_bytes / wanted, 1, threads));
  planned.buffer_bytes = backend.buffer_bytes(planned.workers, options.memory_bytes);
  planned.part_bytes = options.writes_wait ? 0 : backend.in_cache_bytes();
  return planned;
}

std::vector<Task> cut_tasks(const Plan& plan, std::size_t tensor, std::span<const ByteRange> ranges,
                            const Backend& backend, i64 buffer_bytes, const ModelLeaves* leaves) {
  const Cutter cutter(plan, tensor, backend, buffer_bytes, leaves);
  std::vector<Task> tasks;
  for (const ByteRange& range : ranges) cutter.cut(range.begin, range.end, tasks);
  return tasks;
}

std::vector<Task> make_tasks(const Plan& plan, const Backend& backend, i64 buffer_bytes,
                             const ExecuteOptions& options) {
  std::vector<DoneRange> done = options.done;
  std::ranges::sort(done, {}, [](const DoneRange& range) { return std::pair(range.tensor, range.begin); });
  auto next = done.begin();
  std::vector<Task> tasks;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    const ClonePlan* const clones = options.clones != nullptr && options.clones->has(t) ? options.clones : nullptr;
    const Cutter cutter(plan, t, backend, buffer_bytes, options.output_leaves, clones);
    i64 begin = 0;
    for (; next != done.end() && next->tensor == t; ++next) {
      cutter.cut(begin, next->begin, tasks);
      begin = next->end;
    }
    cutter.cut(begin, plan.outputs[t].bytes, tasks);
  }
  return tasks;
}

std::vector<Task> spread_over_files(const std::vector<Task>& tasks, const Plan& plan, int files_at_once) {
  const auto file_of = [&](std::size_t task) { return plan.outputs[tasks[task].tensor].shard; };
  std::size_t next = 0;
  const auto next_file = [&] {
    const std::size_t begin = next;
    while (next < tasks.size() && file_of(next) == file_of(begin)) ++next;
    return std::pair(begin, next);
  };
  std::vector<std::pair<std::size_t, std::size_t>> open;
  while (std::ssize(open) < files_at_once && next < tasks.size()) open.push_back(next_file());
  std::vector<Task> spread;
  spread.reserve(tasks.size());
  while (!open.empty()) {
    for (auto& [task, end] : open) {
      spread.push_back(tasks[task++]);
      if (task == end && next < tasks.size()) std::tie(task, end) = next_file();
    }
    std::erase_if(open, [](const auto& range) { return range.first == range.second; });
  }
  return spread;
}

std::vector<i64> task_bytes(std::span<const Task> tasks) {
  std::vector<i64> bytes;
  for (const Task& task : tasks) bytes.push_back(task.end - task.begin);
  return bytes;
}

std::vector<std::size_t> files_of(std::span<const Task> tasks, const Plan& plan) {
  std::vector<std::size_t> files;
  for (const Task& task : tasks) files.push_back(plan.outputs[task.tensor].shard);
  return files;
}

TaskPlan plan_tasks(const Plan& plan, const Backend& backend, const ExecuteOptions& options) {
  const WorkerPlan workers = plan_workers(plan, backend, options);
  return {workers, spread_over_files(make_tasks(plan, backend, workers.buffer_bytes, options), plan, workers.workers)};
}

}  // namespace glu_ckpt
