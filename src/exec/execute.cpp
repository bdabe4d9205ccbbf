/// Output-driven execution: a task is a range of one output tensor's bytes. A worker gathers it from the
/// source into its buffer and writes it once, at its final place; tasks may run in any order.

#include "glu_ckpt/execute.hpp"

#include <algorithm>

#include "core/grow_buffer.hpp"
#include "core/parallel.hpp"
#include "exec/move_parts.hpp"

namespace glu_ckpt {
namespace {

/// One gather call: where to read from and where byte `begin` of the range goes.
struct Gather {
  const Source& source;
  const Backend& backend;
  std::byte* out;
  i64 begin;
  std::vector<std::byte>& scratch;
  i64 scratch_bytes;

  void fetch(const Move& move) const {
    if (move.run_bytes >= kDirectRunBytes || move.runs() == 1) return read_runs(move);
    const i64 window = source_window(move);
    if (window <= scratch_bytes && (window <= kDirectRunBytes || window <= kMaxReadWaste * move.bytes()))
      return read_window(move, window);
    const auto [low, high] = halve_move(move);
    fetch(low);
    fetch(high);
  }

  void read_runs(const Move& move) const {
    const auto& d = move.dims;
    for (i64 i = 0; i < d[0].count; ++i)
      for (i64 j = 0; j < d[1].count; ++j)
        for (i64 k = 0; k < d[2].count; ++k)
          for (i64 l = 0; l < d[3].count; ++l) {
            const i64 src =
                move.src_offset + i * d[0].src_step + j * d[1].src_step + k * d[2].src_step + l * d[3].src_step;
            const i64 dst =
                move.dst_offset + i * d[0].dst_step + j * d[1].dst_step + k * d[2].dst_step + l * d[3].dst_step;
            source.read(move.src, src, {out + (dst - begin), static_cast<std::size_t>(move.run_bytes)});
          }
  }

  void read_window(const Move& move, i64 window) const {
    grow_buffer(scratch, window);
    source.read(move.src, move.src_offset, {scratch.data(), static_cast<std::size_t>(window)});
    Move local = move;
    local.src_offset = 0;
    local.dst_offset -= begin;
    backend.copy(local, scratch.data(), out);
  }
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

/// Bytes of a task of one tensor. Where runs are short it is as many whole moves as fit, such as experts: cut anywhere
/// else, a transpose reads the pieces of its source that both neighbours want twice.
i64 task_bytes(std::span<const Move> moves, bool short_runs, const Backend& backend, i64 buffer_bytes) {
  i64 move_bytes = 1;
  for (const Move& move : moves) move_bytes = std::max(move_bytes, target_window(move));
  const i64 bytes = std::min(buffer_bytes, backend.task_bytes(short_runs));
  if (!short_runs || move_bytes > buffer_bytes) return bytes;
  return std::max(move_bytes, bytes / move_bytes * move_bytes);
}

std::vector<Task> make_tasks(const Plan& plan, const Backend& backend, i64 buffer_bytes) {
  std::vector<Task> tasks;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    const std::span<const Move> moves(plan.moves.data() + plan.first_move[t],
                                      plan.moves.data() + plan.first_move[t + 1]);
    const bool short_runs = has_short_runs(moves);
    const i64 size = task_bytes(moves, short_runs, backend, buffer_bytes);
    for (i64 begin = 0; begin < plan.outputs[t].bytes; begin += size)
      tasks.push_back({t, begin, std::min(begin + size, plan.outputs[t].bytes), short_runs});
  }
  return tasks;
}

}  // namespace

void gather(std::span<const Move> moves, const Source& source, const Backend& backend, i64 begin, i64 end,
            std::byte* out, std::vector<std::byte>& scratch, i64 scratch_bytes) {
  const Gather gather{source, backend, out, begin, scratch, scratch_bytes};
  for (const Move& move : moves) clip_move(move, begin, end, [&](const Move& part) { gather.fetch(part); });
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
