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
  std::exception_ptr failure;
  const auto work = [&](int worker) {
    try {
      for (std::size_t i = next++; i < count; i = next++) task(i, worker);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
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
