/// Output-driven execution: a task is a range of one output tensor's bytes. A worker gathers it from the
/// source into its buffer, hashes it, and writes it once, at its final place; tasks may run in any order.

#include "glu_ckpt/execute.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <tuple>

#include "core/compute.hpp"
#include "core/float_rows.hpp"
#include "core/hash.hpp"
#include "core/parallel.hpp"
#include "exec/clone_plan.hpp"
#include "exec/done_log.hpp"
#include "exec/execute_tasks.hpp"
#include "exec/host_buffer.hpp"
#include "exec/move_parts.hpp"
#include "exec/range_reader.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/plan.hpp"
#include "io/file.hpp"
#include "io/file_backed.hpp"
#include "io/page_bytes.hpp"
#include "io/sink.hpp"
#include "plan/join_moves.hpp"

namespace glu_ckpt {
namespace {

/// Linux takes no more of one piece of advice than the disk's largest request or its read-ahead, of which 512 KiB are
/// nowhere too much.
constexpr i64 kAdviceBytes = i64{512} << 10;

/// Asks for the bytes that bytes [begin, end) of an output tensor are made of, and does not wait for them: a disk that
/// is asked for one worker's task at a time rests while the worker hashes and writes. It asks for nothing where the
/// source does not know the place of its bytes in a file, and nothing that will be read past the page cache: bytes that
/// lie in their pages of the source as they do in the output, whose byte 0 lies at `phase` in its page.
void read_ahead(const Source& source, std::span<const Move> moves, i64 begin, i64 end, i64 phase) {
  // The advice costs as much as the read for a few pages, such as those between clones.
  const FileBacked* const files = source.file_backed();
  if (files == nullptr || end - begin < kAdviceBytes) return;
  for (const Move& move : moves)
    clip_move(move, begin, end, [&](const Move& part) {
      const FilePlace place = files->place(part.src);
      const i64 window = source_window(part);
      if (place.file == nullptr || window > kMaxReadWaste * part.bytes()) return;
      const bool past_cache = part.run_bytes >= kPageBytes && run_phase(part, place.offset, phase, kPageBytes) == 0 &&
                              files->reads_past_cache(part.src);
      if (past_cache) return;
      const i64 from = place.offset + part.src_offset;
      for (i64 done = 0; done < window; done += kAdviceBytes)
        place.file->will_need(from + done, std::min(kAdviceBytes, window - done));
    });
}

/// More workers than may compute at once: while some wait for the disk to write, others read and hash.
class Semaphore {
 public:
  explicit Semaphore(int count) : free_(count) {}

  // This is not std::counting_semaphore: that of libstdc++ 12 and before wakes nobody when it is released twice in a
  // row, and of two waiting workers one then sleeps for ever.
  void acquire() {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return free_ > 0; });
    --free_;
  }

  void release() {
    {
      const std::lock_guard lock(mutex_);
      ++free_;
    }
    freed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable freed_;
  int free_;
};

/// One worker's permit, from its first acquire() to release(), or to the end of its task.
class Permit {
 public:
  explicit Permit(Semaphore& semaphore) : semaphore_(semaphore) {}
  Permit(const Permit&) = delete;
  Permit& operator=(const Permit&) = delete;
  ~Permit() { release(); }

  void acquire() {
    if (!held_) semaphore_.acquire();
    held_ = true;
  }
  void release() {
    if (held_) semaphore_.release();
    held_ = false;
  }

 private:
  Semaphore& semaphore_;
  bool held_ = false;
};

/// A write of fewer bytes ends in memory, so that a worker does many of them in one permit.
constexpr std::size_t kAwaitedBytes = std::size_t{64} << 10;

/// Returns how far behind a page's begin a byte of a tensor has to lie in memory so that it can go to its file
/// directly.
i64 memory_phase(const Sink& sink, std::size_t tensor, i64 begin) {
  const i64 offset = sink.file_offset(tensor);
  return offset < 0 ? 0 : (offset + begin) % kPageBytes;
}

using Clock = std::chrono::steady_clock;

i64 nanoseconds(Clock::time_point from, Clock::time_point to) { return (to - from) / std::chrono::nanoseconds(1); }

/// Finds the moves of a range, so that one of a few bytes does not cost a look at all moves of its tensor.
class MovesByPlace {
 public:
  explicit MovesByPlace(const Plan& plan) : first_move_(plan.first_move), moves_(plan.moves), reach_(moves_.size()) {
    if (!is_sorted()) sort();
    for (std::size_t t = 0; t + 1 < first_move_.size(); ++t) {
      i64 reach = 0;
      for (std::size_t m = first_move_[t]; m < first_move_[t + 1]; ++m)
        reach_[m] = reach = std::max(reach, moves_[m].dst_offset + target_window(moves_[m]));
    }
  }

  /// Returns all moves that write to the task's range, and maybe others.
  std::span<const Move> of(const Task& task) const {
    const auto first = reach_.begin() + static_cast<std::ptrdiff_t>(first_move_[task.tensor]);
    const auto last = reach_.begin() + static_cast<std::ptrdiff_t>(first_move_[task.tensor + 1]);
    const auto from = static_cast<std::size_t>(std::upper_bound(first, last, task.begin) - reach_.begin());
    const std::span<const Move> behind = moves_.subspan(from, first_move_[task.tensor + 1] - from);
    return {behind.begin(), std::ranges::lower_bound(behind, task.end, {}, &Move::dst_offset)};
  }

 private:
  bool is_sorted() const {
    for (std::size_t t = 0; t + 1 < first_move_.size(); ++t)
      if (!std::ranges::is_sorted(moves_.subspan(first_move_[t], first_move_[t + 1] - first_move_[t]), {},
                                  &Move::dst_offset))
        return false;
    return true;
  }

  /// This makes a copy of what may be a hundred thousand moves, so it is done only where they are not sorted.
  void sort() {
    sorted_.assign(moves_.begin(), moves_.end());
    moves_ = sorted_;
    for (std::size_t t = 0; t + 1 < first_move_.size(); ++t)
      std::stable_sort(sorted_.begin() + static_cast<std::ptrdiff_t>(first_move_[t]),
                       sorted_.begin() + static_cast<std::ptrdiff_t>(first_move_[t + 1]),
                       [](const Move& a, const Move& b) { return a.dst_offset < b.dst_offset; });
  }

  const std::vector<std::size_t>& first_move_;
  /// The plan's own, or those below.
  std::span<const Move> moves_;
  std::vector<Move> sorted_;
  /// The furthest end of each move and of all moves before it in its tensor.
  std::vector<i64> reach_;
};

LeafSum sum_whole(std::span<const std::byte> bytes) {
  const Hash128 hash = hash128(bytes, 0);
  return {hash.low, hash.high, 1, std::ssize(bytes)};
}

/// Makes one range of `done` and what follows it. False where they are not neighbours, or one has a hash of all its
/// bytes.
bool try_join(DoneRange& done, const DoneRange& next) {
  if (done.end != next.begin || done.whole.leaves + next.whole.leaves > 0) return false;
  done.end = next.end;
  done.sums += next.sums;
  return true;
}

/// The state that the workers of one execute_tasks() share.
class Execution {
 public:
  Execution(const Plan& plan, const Source& source, Sink& sink, const Backend& backend, const ExecuteOptions& options,
            const WorkerPlan& workers)
      : plan_(plan),
        source_(source),
        sink_(sink),
        backend_(backend),
        options_(options),
        worker_plan_(workers),
        moves_by_place_(plan),
        semaphore_(backend.computing(options.jobs)),
        workers_(static_cast<std::size_t>(worker_plan_.workers)),
        sums_(workers_.size()) {}

  RangeSums run(std::span<const Task> tasks, TaskQueue& queue) {
    parallel_until(
        worker_plan_.workers, [&](int number) { return queue.next(number); },
        [&](std::size_t index, int number) { work(tasks[index], number); },
        [&](std::size_t index) { announce(tasks[index]); });
    RangeSums total;
    for (const RangeSums& sum : sums_) total += sum;
    return total;
  }

 private:
  bool has_clones(const Task& task) const { return options_.clones != nullptr && options_.clones->has(task.tensor); }

  void work(const Task& task, int number) {
    // Made by the thread that uses it: a GPU is chosen for each thread.
    auto& worker = workers_[static_cast<std::size_t>(number)];
    if (!worker) worker = backend_.make_worker(number, worker_plan_.buffer_bytes);
    Permit permit(semaphore_);
    DoneRange done{task.tensor, task.begin, task.begin, {}};
    const auto log_done = [&] {
      if (options_.log != nullptr && done.bytes() > 0) options_.log->add(done);
    };
    for (const Task& part : parts_of(task)) {
      permit.acquire();
      DoneRange written{part.tensor, part.begin, part.end, {}};
      const std::span<const std::byte> bytes = produce(*worker, part, written.sums);
      if (bytes.size() >= kAwaitedBytes) permit.release();
      const auto start = Clock::now();
      sink_.write(part.tensor, part.begin, bytes);
      if (options_.times != nullptr) options_.times->writing += nanoseconds(start, Clock::now());
      sums_[static_cast<std::size_t>(number)] += written.sums;
      if (options_.log != nullptr && written.sums.output.bytes != written.bytes()) written.whole = sum_whole(bytes);
      if (has_clones(task) || !try_join(done, written)) {
        log_done();
        done = written;
      }
      if (options_.on_progress) options_.on_progress(written.bytes());
    }
    log_done();
  }

  /// The parts of a task that are made and written one after the other: what clones leave of it, or
  /// WorkerPlan::part_bytes at a time.
  std::vector<Task> parts_of(const Task& task) const {
    if (has_clones(task))
      return cut_tasks(plan_, task.tensor, options_.clones->written(task.tensor, task.begin, task.end), backend_,
                       worker_plan_.buffer_bytes, options_.output_leaves);
    const i64 part_bytes = worker_plan_.part_bytes;
    if (part_bytes == 0 || task.short_runs) return {task};
    std::vector<Task> parts;
    for (i64 begin = task.begin; begin < task.end;) {
      const i64 wanted = std::min(task.end, begin + part_bytes);
      const ModelLeaves* const leaves = options_.output_leaves;
      const i64 end = leaves == nullptr ? wanted : std::min(task.end, leaves->cut(task.tensor, begin, wanted));
      parts.push_back({task.tensor, begin, end, false});
      begin = end;
    }
    return parts;
  }

  std::span<const std::byte> produce(Backend::Worker& worker, const Task& task, RangeSums& sums) const {
    const auto start = Clock::now();
    // An output that repeats another one is no part of the model by itself, on either side.
    const bool repeats = std::ranges::binary_search(plan_.repeats, task.tensor);
    RangeReader reader(source_, repeats ? nullptr : options_.source_leaves);
    const auto made = make_bytes(worker, task, reader);
    const auto produced = Clock::now();
    sums.source = reader.sum();
    if (options_.output_leaves != nullptr) options_.output_leaves->add(task.tensor, task.begin, made, sums.output);
    if (source_.may_have_read_nan_or_infinity() && std::ranges::binary_search(options_.count_nans_of, task.tensor))
      sums.nans = count_not_finite(made, plan_.outputs[task.tensor].dtype);
    if (options_.times != nullptr) {
      options_.times->reading += reader.reading_ns();
      options_.times->hashing += reader.hashing_ns() + nanoseconds(produced, Clock::now());
      options_.times->moving += nanoseconds(start, produced) - reader.reading_ns() - reader.hashing_ns();
    }
    return made;
  }

  std::span<const std::byte> make_bytes(Backend::Worker& worker, const Task& task, RangeReader& reader) const {
    const i64 phase = memory_phase(sink_, task.tensor, task.begin);
    if (std::ranges::binary_search(plan_.zeros, task.tensor)) return zero_range(task, phase);
    const auto computed = std::ranges::lower_bound(plan_.computes, task.tensor, {}, &Compute::dst);
    if (computed == plan_.computes.end() || computed->dst != task.tensor)
      return worker.produce(moves_by_place_.of(task), reader, task.begin, task.end, phase);
    return compute_range(*computed, task, reader, phase);
  }

  static std::span<const std::byte> zero_range(const Task& task, i64 phase) {
    thread_local HostBuffer zeros;
    const std::span out(zeros.reserve(task.end - task.begin, phase), static_cast<std::size_t>(task.end - task.begin));
    std::ranges::fill(out, std::byte{});
    return out;
  }

  std::span<const std::byte> compute_range(const Compute& wanted, const Task& task, RangeReader& reader,
                                           i64 phase) const {
    const OutputTensor& output = plan_.outputs[wanted.dst];
    const Dtype from = source_.inventory().tensors[wanted.src].dtype;
    const i64 from_bytes = dtype_bits(from) / 8, to_bytes = dtype_bits(output.dtype) / 8;
    thread_local std::vector<std::byte> stored;
    thread_local HostBuffer made;
    stored.resize(static_cast<std::size_t>((task.end - task.begin) / to_bytes * from_bytes));
    std::vector<RangeReader::Run> runs{{wanted.src, task.begin / to_bytes * from_bytes, stored}};
    reader.read_runs(runs);
    const std::span out(made.reserve(task.end - task.begin, phase), static_cast<std::size_t>(task.end - task.begin));
    compute(wanted.op, from, stored, output.dtype, out);
    return out;
  }

  /// The source's bytes are wanted soon.
  void announce(const Task& task) const {
    std::vector<ByteRange> ranges{{task.begin, task.end}};
    if (has_clones(task)) ranges = options_.clones->written(task.tensor, task.begin, task.end);
    for (const ByteRange& range : ranges)
      read_ahead(source_, moves_by_place_.of({task.tensor, range.begin, range.end}), range.begin, range.end,
                 std::max<i64>(0, sink_.file_offset(task.tensor)));
  }

  const Plan& plan_;
  const Source& source_;
  Sink& sink_;
  const Backend& backend_;
  const ExecuteOptions& options_;
  WorkerPlan worker_plan_;
  MovesByPlace moves_by_place_;
  Semaphore semaphore_;
  std::vector<std::unique_ptr<Backend::Worker>> workers_;
  std::vector<RangeSums> sums_;
};

}  // namespace

i64 planned_buffer_bytes(const Plan& plan, const Backend& backend, const ExecuteOptions& options) {
  const WorkerPlan planned = plan_workers(plan, backend, options);
  i64 largest = 0, largest_window = 0;
  ExecuteOptions written = options;
  written.clones = nullptr;
  for (const Task& task : make_tasks(plan, backend, planned.buffer_bytes, written)) {
    const i64 bytes = task.end - task.begin;
    largest = std::max(largest, bytes);
    // Windows that are read may have gaps in them; see kMaxReadWaste.
    largest_window = std::max(largest_window, task.short_runs ? kMaxReadWaste * bytes : bytes);
  }
  return planned.workers * (largest + std::min(planned.buffer_bytes, std::max(kDirectRunBytes, largest_window)));
}

RangeSums execute_tasks(const Plan& plan, const Source& source, Sink& sink, const Backend& backend,
                        const ExecuteOptions& options, const TaskPlan& tasks, TaskQueue& queue) {
  return Execution(plan, source, sink, backend, options, tasks.workers).run(tasks.tasks, queue);
}

RangeSums execute(const Plan& plan, const Source& source, Sink& sink, const Backend& backend,
                  const ExecuteOptions& options) {
  const TaskPlan tasks = plan_tasks(plan, backend, options);
  const auto alone = make_single_rank();
  TaskQueue queue(*alone, task_bytes(tasks.tasks), files_of(tasks.tasks, plan));
  return execute_tasks(plan, source, sink, backend, options, tasks, queue);
}

namespace {

std::span<const std::byte> read_range_back(const DoneRange& range, const DurableSink& sink, HostBuffer& buffer) {
  const std::span<std::byte> bytes(buffer.reserve(range.bytes(), 0), static_cast<std::size_t>(range.bytes()));
  sink.read_back(range.tensor, range.begin, bytes);
  return bytes;
}

/// Returns whether these bytes are those that were written.
bool holds(const DoneRange& range, std::span<const std::byte> bytes, const ExecuteOptions& options) {
  LeafSum found;
  if (options.output_leaves != nullptr) options.output_leaves->add(range.tensor, range.begin, bytes, found);
  return found == range.sums.output && (found.bytes == range.bytes() || sum_whole(bytes) == range.whole);
}

}  // namespace

std::vector<DoneRange> prove_ranges(std::vector<DoneRange> ranges, const Plan& plan, DurableSink& sink,
                                    const ExecuteOptions& options) {
  // Where a range holds the same leaves of both sides, their sums are equal, or the entry was damaged.
  const auto is_contradicted = [](const RangeSums& sums) {
    return sums.source.leaves == sums.output.leaves && sums.source.bytes == sums.output.bytes &&
           sums.source != sums.output;
  };
  const auto is_strange = [&](const DoneRange& range) {
    return range.tensor >= plan.outputs.size() || range.begin < 0 || range.begin >= range.end ||
           range.end > plan.outputs[range.tensor].bytes || range.bytes() > options.memory_bytes ||
           is_contradicted(range.sums);
  };
  std::erase_if(ranges, is_strange);
  // Fewer threads than jobs where ranges are long, as when they were made (plan_workers).
  i64 longest = 1;
  for (const DoneRange& range : ranges) longest = std::max(longest, range.bytes());
  const auto count = static_cast<int>(std::clamp<i64>(options.memory_bytes / longest, 1, std::max(1, options.jobs)));
  // Two runs may have written the same range, of which the later one counts: each lot has ranges that overlap.
  std::ranges::sort(ranges, {},
                    [](const DoneRange& range) { return std::tuple(range.tensor, range.begin, range.end); });
  std::vector<std::span<const DoneRange>> lots;
  i64 end = 0;
  for (auto range = ranges.begin(); range != ranges.end(); ++range) {
    const bool overlaps = range != ranges.begin() && std::prev(range)->tensor == range->tensor && range->begin < end;
    end = overlaps ? std::max(end, range->end) : range->end;
    if (overlaps)
      lots.back() = {lots.back().data(), lots.back().size() + 1};
    else
      lots.emplace_back(&*range, 1);
  }

  std::vector<HostBuffer> buffers(static_cast<std::size_t>(count));
  std::vector<DoneRange> proved;
  std::mutex mutex;
  parallel_for(lots.size(), count, [&](std::size_t index, int number) {
    i64 behind = 0;
    for (const DoneRange& range : lots[index]) {
      if (options.on_progress) options.on_progress(range.bytes());
      if (range.begin < behind) continue;
      const auto bytes = read_range_back(range, sink, buffers[static_cast<std::size_t>(number)]);
      if (!holds(range, bytes, options)) continue;
      sink.adopt(range.tensor, range.begin, bytes);
      behind = range.end;
      const std::lock_guard lock(mutex);
      proved.push_back(range);
    }
  });
  return proved;
}

std::optional<DoneRange> first_lost(std::span<const DoneRange> ranges, const DurableSink& sink,
                                    const ExecuteOptions& options) {
  std::vector<HostBuffer> buffers(static_cast<std::size_t>(std::max(1, options.jobs)));
  std::optional<DoneRange> lost;
  std::mutex mutex;
  parallel_for(ranges.size(), static_cast<int>(buffers.size()), [&](std::size_t index, int number) {
    const DoneRange& range = ranges[index];
    const auto bytes = read_range_back(range, sink, buffers[static_cast<std::size_t>(number)]);
    if (options.on_progress) options.on_progress(range.bytes());
    if (holds(range, bytes, options)) return;
    const std::lock_guard lock(mutex);
    lost = range;
  });
  return lost;
}

}  // namespace glu_ckpt
