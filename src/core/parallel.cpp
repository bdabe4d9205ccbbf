#include "core/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace glu_ckpt {

void parallel_for(std::size_t count, int jobs, const std::function<void(std::size_t, int)>& task) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  // The first task's that fails: tasks begin in order, so those before it run to their end and it is always the same.
  std::exception_ptr failure;
  std::size_t failed = count;
  const auto work = [&](int worker) {
    std::size_t i = 0;
    try {
      for (i = next++; i < count; i = next++) task(i, worker);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (i >= failed) return;
      failed = i;
      failure = std::current_exception();
    }
  };
  const int threads = static_cast<int>(std::min<std::size_t>(count, static_cast<std::size_t>(std::max(jobs, 1))));
  std::vector<std::thread> pool;
  for (int worker = 1; worker < threads; ++worker) pool.emplace_back(work, worker);
  work(0);
  for (std::thread& thread : pool) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace glu_ckpt
