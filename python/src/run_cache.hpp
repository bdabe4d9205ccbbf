#pragma once
/// What runs on a GPU need besides their tensors, kept from one call to the next.

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "glu_ckpt/ops/cuda.hpp"

namespace glu_ckpt::python {

/// Where a run's work goes.
struct RunPlace {
  int device = 0;
  GpuStream stream = nullptr;
};

/// Objects by what they are made of. One object is for one stream, as its runs share its memory, and for one capture: a
/// graph replays whenever its owner likes, and needs the object as long as the process lives. Of the others the newest
/// kMost are kept.
template <typename Run>
class RunCache {
 public:
  struct Entry {
    std::unique_ptr<const Run> run;
    /// Runs are several launches, between which no other run's may come.
    std::mutex launching;
    u64 used = 0;
    bool captured = false;
  };

  /// `make(stream)` makes the object, for the current device. `key` says what of, addresses included.
  template <typename Make>
  std::shared_ptr<Entry> find_or_make(std::vector<std::int64_t> key, const RunPlace& place, const Make& make) {
    const u64 capture = capture_number(place.stream);
    key.insert(key.end(), {place.device, reinterpret_cast<std::int64_t>(place.stream), static_cast<i64>(capture)});
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& entry = entries_[key];
    if (entry == nullptr) {
      auto made = std::make_shared<Entry>();
      try {
        const BesideCaptures beside;
        made->run = std::make_unique<const Run>(make(beside.stream()));
      } catch (...) {
        entries_.erase(key);
        throw;
      }
      made->captured = capture != 0;
      entry = std::move(made);
      // Memory is not given back while a graph is captured, for that waits for the device.
      if (capture == 0) drop_oldest(key);
    }
    entry->used = ++clock_;
    return entry;
  }

 private:
  static constexpr i64 kMost = 256;

  void drop_oldest(const std::vector<std::int64_t>& kept) {
    auto oldest = entries_.end();
    i64 count = 0;
    for (auto at = entries_.begin(); at != entries_.end(); ++at) {
      if (at->second->captured) continue;
      ++count;
      if (at->first != kept && (oldest == entries_.end() || at->second->used < oldest->second->used)) oldest = at;
    }
    if (count > kMost && oldest != entries_.end()) entries_.erase(oldest);
  }

  std::mutex mutex_;
  std::map<std::vector<std::int64_t>, std::shared_ptr<Entry>> entries_;
  u64 clock_ = 0;
};

/// The process's cache of one kind. It is never destroyed: CUDA may be gone by then.
template <typename Run>
RunCache<Run>& run_cache() {
  static auto* const cache = new RunCache<Run>;
  return *cache;
}

}  // namespace glu_ckpt::python
