#pragma once
/// A fixed number of workers over a numbered list of tasks.

#include <cstddef>
#include <cstdint>
#include <functional>

namespace glu_ckpt {

/// Calls `task(index, worker)` for every index < count, each once, from `jobs` threads; indices are
/// handed out in order. An exception stops the handing out; that of the lowest index is rethrown here.
void parallel_for(std::size_t count, int jobs, const std::function<void(std::size_t, int)>& task);

/// Does the same for numbers that come from `next(worker)`, which any thread calls, until it gives a negative one. Each
/// thread begins no other task after a failure; of failures, that of the least number is rethrown. With `ahead`, a
/// thread takes its next number before it begins the task it has, and says so to `ahead`.
void parallel_until(int jobs, const std::function<std::int64_t(int)>& next,
                    const std::function<void(std::size_t, int)>& task,
                    const std::function<void(std::size_t)>& ahead = {});

}  // namespace glu_ckpt
