/// Output-driven execution: a task is a range of one output tensor's bytes. A worker gathers it from the
/// source into its buffer and writes it once, at its final place; tasks may run in any order.

#include "glu_ckpt/execute.hpp"

#include <algorithm>

#include "core/grow_buffer.hpp"
#include "core/parallel.hpp"
#include "core/round_up.hpp"
#include "exec/move_parts.hpp"
#include "exec/read_pieces.hpp"

namespace glu_ckpt {
namespace {

/// Windows lie in the scratch buffer at multiples of this, so that a register's load crosses no line of the cache.
constexpr i64 kWindowAlignment = 16;

/// One gather call: where to read from and where byte `begin` of the range goes.
class Gather {
 public:
  Gather(const Source& source, const Backend& backend, std::byte* out, i64 begin, std::vector<std::byte>& scratch)
      : source_(source), backend_(backend), out_(out), begin_(begin), scratch_(scratch) {}

  void read_runs(const Move& move) const {
    for_each_run(move, [&](i64 src, i64 dst) {
      source_.read(move.src, src, {out_ + (dst - begin_), static_cast<std::size_t>(move.run_bytes)});
    });
  }

  /// Reads windows into as much scratch as holds them all, within the limit, and moves on what is there before the next
  /// one would not fit: gate and up are in it together, and leave it together.
  void read_pieces(const std::vector<ReadPiece>& pieces, i64 range_bytes, i64 limit_bytes) {
    i64 wanted_bytes = 0, largest = 0;
    for (const ReadPiece& piece : pieces)
      if (!is_run(piece)) {
        wanted_bytes += room(piece);
        largest = std::max(largest, room(piece));
      }
    // Many pieces of a few bytes are mostly alignment; planned_buffer_bytes() does not count on more.
    const i64 scratch_bytes = std::min({limit_bytes, wanted_bytes, std::max(largest, kMaxReadWaste * range_bytes)});
    grow_buffer(scratch_, scratch_bytes);
    for (const ReadPiece& piece : pieces) {
      if (is_run(piece)) {
        read_runs(piece.moves.front());
        continue;
      }
      if (used_ + room(piece) > scratch_bytes) flush();
      read_window(piece);
    }
    flush();
  }

 private:
  static i64 room(const ReadPiece& piece) { return round_up(piece.wanted, kWindowAlignment); }
  static bool is_run(const ReadPiece& piece) { return piece.moves.size() == 1 && piece.moves.front().runs() == 1; }

  void read_window(const ReadPiece& piece) {
    source_.read(piece.src, piece.begin, {scratch_.data() + used_, static_cast<std::size_t>(piece.wanted)});
    for (Move local : piece.moves) {
      local.src = local.dst = 0;
      local.src_offset += used_ - piece.begin;
      local.dst_offset -= begin_;
      queued_.push_back(local);
    }
    used_ += room(piece);
  }

  void flush() {
    if (!queued_.empty()) backend_.copy(queued_, scratch_.data(), out_);
    queued_.clear();
    used_ = 0;
  }

  const Source& source_;
  const Backend& backend_;
  std::byte* out_;
  i64 begin_;
  std::vector<std::byte>& scratch_;
  std::vector<Move> queued_;
  i64 used_ = 0;
};

struct Task {
  std::size_t tensor;
  i64 begin;
  i64 end;
  bool short_runs;
};

bool has_short_runs(std::span<const Move> moves) {
  return std::ranges::any_of(moves, [](const Move& move) { return move.run_bytes < kDirectRunBytes; });
}

/// Cuts a tensor into tasks. Where runs are short it is cut between moves, such as experts, as far as a buffer holds
/// them: cut anywhere else, a transpose reads the pieces of its source that both neighbours want twice.
void add_tasks(std::span<const Move> moves, std::size_t tensor, i64 bytes, const Backend& backend, i64 buffer_bytes,
               std::vector<Task>& tasks) {
  const bool short_runs = has_short_runs(moves);
  const i64 size = std::min(buffer_bytes, backend.task_bytes(short_runs));
  std::vector<i64> ends;
  if (short_runs) ends = stretch_ends(moves);
  auto next = ends.begin();
  for (i64 begin = 0, end = 0; begin < bytes; begin = end) {
    while (next != ends.end() && *next <= begin + size) end = *next++;
    if (end == begin && next != ends.end()) end = std::min(*next, begin + buffer_bytes);
    if (end == begin) end = std::min(bytes, begin + size);
    tasks.push_back({tensor, begin, end, short_runs});
  }
}

std::vector<Task> make_tasks(const Plan& plan, const Backend& backend, i64 buffer_bytes) {
  std::vector<Task> tasks;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t)
    add_tasks({plan.moves.data() + plan.first_move[t], plan.moves.data() + plan.first_move[t + 1]}, t,
              plan.outputs[t].bytes, backend, buffer_bytes, tasks);
  return tasks;
}

}  // namespace

void gather(std::span<const Move> moves, const Source& source, const Backend& backend, i64 begin, i64 end,
            std::byte* out, std::vector<std::byte>& scratch, i64 scratch_bytes) {
  Gather gather(source, backend, out, begin, scratch);
  std::vector<Move> parts;
  for (const Move& move : moves)
    clip_move(move, begin, end, [&](const Move& part) {
      if (part.run_bytes >= kDirectRunBytes)
        gather.read_runs(part);
      else
        parts.push_back(part);
    });
  if (!parts.empty())
    gather.read_pieces(make_pieces(parts, scratch_bytes, kWindowAlignment), end - begin, scratch_bytes);
}

i64 planned_buffer_bytes(const Plan& plan, const Backend& backend, const ExecuteOptions& options) {
  const int workers = backend.workers(options.jobs);
  const i64 buffer_bytes = backend.buffer_bytes(workers, options.memory_bytes);
  i64 largest = 0, largest_window = 0;
  for (const Task& task : make_tasks(plan, backend, buffer_bytes)) {
    const i64 bytes = task.end - task.begin;
    largest = std::max(largest, bytes);
    // What is read may have gaps in it; see kMaxReadWaste.
    largest_window = std::max(largest_window, task.short_runs ? kMaxReadWaste * bytes : bytes);
  }
  return workers * (largest + std::min(buffer_bytes, std::max(kDirectRunBytes, largest_window)));
}

void execute(const Plan& plan, const Source& source, Sink& sink, const Backend& backend,
             const ExecuteOptions& options) {
  const int count = backend.workers(options.jobs);
  const i64 buffer_bytes = backend.buffer_bytes(count, options.memory_bytes);
  const std::vector<Task> tasks = make_tasks(plan, backend, buffer_bytes);
  std::vector<std::unique_ptr<Backend::Worker>> workers(static_cast<std::size_t>(count));
  parallel_for(tasks.size(), count, [&](std::size_t index, int number) {
    const Task& task = tasks[index];
    // Made by the thread that uses it: a GPU is chosen for each thread.
    auto& worker = workers[static_cast<std::size_t>(number)];
    if (!worker) worker = backend.make_worker(number, buffer_bytes);
    const std::span<const Move> moves(plan.moves.data() + plan.first_move[task.tensor],
                                      plan.moves.data() + plan.first_move[task.tensor + 1]);
    sink.write(task.tensor, task.begin, worker->produce(moves, source, task.begin, task.end));
    if (options.on_progress) options.on_progress(task.end - task.begin);
  });
}

}  // namespace glu_ckpt
