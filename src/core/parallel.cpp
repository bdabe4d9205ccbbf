#include "core/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace glu_ckpt {

void parallel_until(int jobs, const std::function<std::int64_t(int)>& next,
                    const std::function<void(std::size_t, int)>& task, const std::function<void(std::size_t)>& ahead) {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::mutex mutex;
  // The first task's that fails: where tasks are taken in order, those before it run to their end, so it is always the
  // same.
  std::exception_ptr failure;
  std::atomic<std::size_t> failed = kNone;
  const auto take = [&](int worker) -> std::int64_t { return failed == kNone ? next(worker) : -1; };
  const auto work = [&](int worker) {
    std::size_t i = 0;
    try {
      for (std::int64_t number = take(worker); number >= 0 && static_cast<std::size_t>(number) < failed;) {
        i = static_cast<std::size_t>(number);
        const std::int64_t following = ahead ? take(worker) : -1;
        if (following >= 0) ahead(static_cast<std::size_t>(following));
        task(i, worker);
        number = ahead ? following : take(worker);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (failure && i >= failed) return;
      failed = i;
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  try {
    for (int worker = 1; worker < std::max(jobs, 1); ++worker) pool.emplace_back(work, worker);
  } catch (const std::system_error&) {
    // The threads that there are do it all where there can be no more.
  }
  work(0);
  for (std::thread& thread : pool) thread.join();
  if (failure) std::rethrow_exception(failure);
}

void parallel_for(std::size_t count, int jobs, const std::function<void(std::size_t, int)>& task) {
  std::atomic<std::int64_t> given{0};
  const auto next = [&](int) {
    const std::int64_t number = given++;
    return number < static_cast<std::int64_t>(count) ? number : -1;
  };
  parallel_until(static_cast<int>(std::min<std::size_t>(count, static_cast<std::size_t>(std::max(jobs, 1)))), next,
                 task);
}

}  // namespace glu_ckpt
