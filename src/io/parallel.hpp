#pragma once
/// A loop over independent files on a few threads.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace glu_ckpt {

/// Calls body(i) once for each i < count, from several threads. When a call throws, no further ones are
/// started and the first exception is thrown here.
template <typename Body>
void for_each_parallel(std::size_t count, const Body& body) {
  // Enough to keep a fast disk busy; hashing runs at several GB/s per thread.
  constexpr std::size_t kMaxThreads = 8;
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  const std::size_t processors = std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < std::min({count, processors, kMaxThreads}); ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace glu_ckpt
