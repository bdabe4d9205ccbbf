#include "ranks/task_queue.hpp"

#include <map>
#include <utility>

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

TaskQueue::TaskQueue(Ranks& ranks, std::span<const i64> task_bytes, std::vector<std::size_t> files)
    : ranks_(ranks), chunks_(divide_tasks(task_bytes, ranks.size())), files_(std::move(files)) {
  ranks.restart();
}

void TaskQueue::close() {
  const std::lock_guard lock(mutex_);
  over_ = true;
}

i64 TaskQueue::next(int worker) {
  const auto number = static_cast<std::size_t>(worker);
  const std::lock_guard lock(mutex_);
  if (over_ || ranks_.stopped()) return -1;
  if (left_ == 0 && !take_chunk()) return -1;
  if (lane_of_.size() <= number) lane_of_.resize(number + 1);
  Lane*& lane = lane_of_[number];
  if (lane == nullptr || lane->left() == 0) {
    if (lane != nullptr) --lane->workers;
    lane = choose_lane();
    ++lane->workers;
  }
  --left_;
  return lane->tasks[lane->given++];
}

/// Sorts the tasks of the next chunk by file. False where there is none.
bool TaskQueue::take_chunk() {
  const i64 chunk = ranks_.take();
  over_ = chunk < 0 || chunk >= static_cast<i64>(chunks_.size());
  if (over_) return false;
  const TaskRange range = chunks_[static_cast<std::size_t>(chunk)];
  std::map<std::size_t, Lane> by_file;
  for (i64 task = range.first; task < range.last; ++task)
    by_file[files_.empty() ? 0 : files_[static_cast<std::size_t>(task)]].tasks.push_back(task);
  lane_of_.clear();
  lanes_.clear();
  for (auto& [file, lane] : by_file) lanes_.push_back(std::move(lane));
  left_ = range.last - range.first;
  return true;
}

/// Returns the first file that nobody is at; where there is none, the one with most left for each worker. Some lane has
/// tasks.
TaskQueue::Lane* TaskQueue::choose_lane() {
  Lane* most = nullptr;
  const auto share = [](const Lane& lane) { return static_cast<double>(lane.left()) / (lane.workers + 1); };
  for (Lane& lane : lanes_) {
    if (lane.left() == 0) continue;
    if (lane.workers == 0) return &lane;
    if (most == nullptr || share(lane) > share(*most)) most = &lane;
  }
  return most;
}

}  // namespace glu_ckpt
