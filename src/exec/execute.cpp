/// Output-driven execution: a task is a range of one output tensor's bytes. A worker gathers it from the
/// source into its buffer and writes it once, at its final place; tasks may run in any order.

#include "glu_ckpt/execute.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "core/parallel.hpp"

namespace glu_ckpt {
namespace {

/// Runs of a page or more are read straight to their place; shorter ones through a scratch buffer, as a
/// system call costs about what copying a page does.
constexpr i64 kDirectRunBytes = 4096;
/// Long runs gain nothing from larger tasks, and small tasks spread over the workers.
constexpr i64 kTaskBytes = i64{8} << 20;
/// Short runs want a task to hold whole matrices, so that a transpose reads its source once.
constexpr i64 kGatherTaskBytes = i64{128} << 20;
/// A gather reads gaps along with data while they are at most this many times the data.
constexpr i64 kMaxReadWaste = 8;

i64 extent(const Move& move, bool source, std::size_t from_dim) {
  i64 bytes = move.run_bytes;
  for (std::size_t l = from_dim; l < move.dims.size(); ++l)
    bytes += (move.dims[l].count - 1) * (source ? move.dims[l].src_step : move.dims[l].dst_step);
  return bytes;
}

Move slice(const Move& move, std::size_t dim, i64 first, i64 count) {
  Move part = move;
  part.src_offset += first * move.dims[dim].src_step;
  part.dst_offset += first * move.dims[dim].dst_step;
  part.dims[dim].count = count;
  if (count == 1) part.dims[dim] = {};
  return part;
}

/// Calls `use` with parts of `move` that together write exactly its bytes in [begin, end). Loops are
/// sorted by dst_step and do not overlap, so at most two slices a level are cut.
template <typename Use>
void clip(const Move& move, std::size_t dim, i64 begin, i64 end, const Use& use) {
  const i64 low = move.dst_offset;
  if (low >= begin && low + extent(move, false, 0) <= end) return use(move);
  if (low >= end || low + extent(move, false, 0) <= begin) return;
  while (dim < move.dims.size() && move.dims[dim].count == 1) ++dim;
  if (dim == move.dims.size()) {
    Move part = move;
    const i64 skip = std::max<i64>(0, begin - low);
    part.src_offset += skip;
    part.dst_offset += skip;
    part.run_bytes = std::min(end, low + move.run_bytes) - part.dst_offset;
    return use(part);
  }
  const i64 step = move.dims[dim].dst_step;
  const i64 count = move.dims[dim].count;
  const i64 inner = extent(move, false, dim + 1);
  // Slices [first, last) reach into the range; [whole_first, whole_last) lie in it altogether.
  const i64 first = begin <= low + inner - 1 ? 0 : (begin - low - inner) / step + 1;
  const i64 last = std::min(count, (end - low + step - 1) / step);
  const i64 whole_first = std::min(last, begin <= low ? 0 : (begin - low + step - 1) / step);
  const i64 whole_last = std::max(whole_first, std::min(last, end < low + inner ? 0 : (end - low - inner) / step + 1));
  for (i64 i = first; i < whole_first; ++i) clip(slice(move, dim, i, 1), dim, begin, end, use);
  if (whole_last > whole_first) use(slice(move, dim, whole_first, whole_last - whole_first));
  for (i64 i = whole_last; i < last; ++i) clip(slice(move, dim, i, 1), dim, begin, end, use);
}

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
    const i64 window = extent(move, true, 0);
    if (window <= scratch_bytes && (window <= kDirectRunBytes || window <= kMaxReadWaste * move.bytes()))
      return read_window(move, window);
    halve(move);
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
    if (static_cast<i64>(scratch.size()) < window) scratch.resize(static_cast<std::size_t>(window));
    source.read(move.src, move.src_offset, {scratch.data(), static_cast<std::size_t>(window)});
    Move local = move;
    local.src_offset = 0;
    local.dst_offset -= begin;
    backend.copy(local, scratch.data(), out);
  }

  /// Splits along the loop that spreads furthest over the source.
  void halve(const Move& move) const {
    std::size_t widest = 0;
    i64 spread = 0;
    for (std::size_t l = 0; l < move.dims.size(); ++l)
      if (const i64 bytes = (move.dims[l].count - 1) * move.dims[l].src_step; bytes > spread) {
        spread = bytes;
        widest = l;
      }
    const i64 count = move.dims[widest].count;
    fetch(slice(move, widest, 0, count / 2));
    fetch(slice(move, widest, count / 2, count - count / 2));
  }
};

/// Each worker has two buffers of this size: one gathers, one is what short runs are read into.
i64 worker_buffer_bytes(int jobs, i64 memory_bytes) {
  return std::max<i64>(kDirectRunBytes, memory_bytes / (2 * std::max(1, jobs)));
}

struct Task {
  std::size_t tensor;
  i64 begin;
  i64 end;
};

std::vector<Task> make_tasks(const Plan& plan, i64 buffer_bytes) {
  std::vector<Task> tasks;
  for (std::size_t t = 0; t < plan.outputs.size(); ++t) {
    bool short_runs = false;
    for (std::size_t m = plan.first_move[t]; m < plan.first_move[t + 1]; ++m)
      short_runs |= plan.moves[m].run_bytes < kDirectRunBytes;
    const i64 size = std::min(buffer_bytes, short_runs ? kGatherTaskBytes : kTaskBytes);
    for (i64 begin = 0; begin < plan.outputs[t].bytes; begin += size)
      tasks.push_back({t, begin, std::min(begin + size, plan.outputs[t].bytes)});
  }
  return tasks;
}

}  // namespace

void gather(std::span<const Move> moves, const Source& source, const Backend& backend, i64 begin, i64 end,
            std::byte* out, std::vector<std::byte>& scratch, i64 scratch_bytes) {
  const Gather gather{source, backend, out, begin, scratch, scratch_bytes};
  for (const Move& move : moves) clip(move, 0, begin, end, [&](const Move& part) { gather.fetch(part); });
}

i64 planned_buffer_bytes(const Plan& plan, int jobs, i64 memory_bytes) {
  const i64 buffer_bytes = worker_buffer_bytes(jobs, memory_bytes);
  i64 largest = 0;
  for (const Task& task : make_tasks(plan, buffer_bytes)) largest = std::max(largest, task.end - task.begin);
  return 2 * std::max(1, jobs) * largest;
}

void execute(const Plan& plan, const Source& source, Sink& sink, const Backend& backend,
             const ExecuteOptions& options) {
  const int jobs = std::max(1, options.jobs);
  const i64 buffer_bytes = worker_buffer_bytes(jobs, options.memory_bytes);
  const std::vector<Task> tasks = make_tasks(plan, buffer_bytes);
  std::vector<std::vector<std::byte>> buffers(static_cast<std::size_t>(jobs));
  std::vector<std::vector<std::byte>> scratch(static_cast<std::size_t>(jobs));
  parallel_for(tasks.size(), jobs, [&](std::size_t index, int worker) {
    const Task& task = tasks[index];
    auto& buffer = buffers[static_cast<std::size_t>(worker)];
    const auto bytes = static_cast<std::size_t>(task.end - task.begin);
    if (buffer.size() < bytes) buffer.resize(bytes);
    const std::span<const Move> moves(plan.moves.data() + plan.first_move[task.tensor],
                                      plan.moves.data() + plan.first_move[task.tensor + 1]);
    gather(moves, source, backend, task.begin, task.end, buffer.data(), scratch[static_cast<std::size_t>(worker)],
           buffer_bytes);
    sink.write(task.tensor, task.begin, {buffer.data(), bytes});
    if (options.on_progress) options.on_progress(task.end - task.begin);
  });
}

}  // namespace glu_ckpt
