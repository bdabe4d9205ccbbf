#include "ranks/task_queue.hpp"

namespace glu_ckpt {
namespace {

/// A chunk is this part of what each rank would have to do of the rest: even a rank of a quarter of the others' speed
/// has finished its first chunk when they have finished everything.
constexpr i64 kChunksPerShare = 4;

}  // namespace

std::vector<TaskRange> divide_tasks(std::span<const i64> task_bytes, int ranks) {
  const i64 count = static_cast<i64>(task_bytes.size());
  if (count == 0) return {};
  if (ranks == 1) return {{0, count}};
  i64 left_bytes = 0;
  for (const i64 bytes : task_bytes) left_bytes += bytes;
  std::vector<TaskRange> chunks;
  for (i64 first = 0, last = 0; first < count; first = last) {
    const i64 wanted_bytes = left_bytes / (kChunksPerShare * ranks);
    i64 bytes = 0;
    do {
      bytes += task_bytes[static_cast<std::size_t>(last++)];
    } while (last < count && (bytes < wanted_bytes || task_bytes[static_cast<std::size_t>(last)] == 0));
    left_bytes -= bytes;
    chunks.push_back({first, last});
  }
  return chunks;
}

TaskQueue::TaskQueue(Ranks& ranks, std::span<const i64> task_bytes)
    : ranks_(ranks), chunks_(divide_tasks(task_bytes, ranks.size())) {
  ranks.restart();
}

void TaskQueue::close() {
  const std::lock_guard lock(mutex_);
  over_ = true;
}

i64 TaskQueue::next() {
  const std::lock_guard lock(mutex_);
  if (over_ || ranks_.stopped()) return -1;
  if (current_.first == current_.last) {
    const i64 chunk = ranks_.take();
    over_ = chunk < 0 || chunk >= static_cast<i64>(chunks_.size());
    if (over_) return -1;
    current_ = chunks_[static_cast<std::size_t>(chunk)];
  }
  return current_.first++;
}

}  // namespace glu_ckpt
