#pragma once
/// Warps as fibers that go on in a random order. For protocols in which what counts is who waits for whom: a warp is
/// one thread.

#include <functional>
#include <vector>

namespace fake_warp {

/// Runs all warps to their ends, and all arrivals. Returns the numbers of those that wait for ever, which are not ended
/// then.
std::vector<std::size_t> run_in_random_order(const std::vector<std::function<void()>>& warps, unsigned seed);

/// Called by a warp: another one may go on before it.
void let_others_go_on();
/// Called by a warp: what arrives when it will, in any order with all else that does.
void later(std::function<void()> arrival);
/// The number of the warp that runs; of an arrival that of the warp it came from.
std::size_t running_warp();
/// Called by a warp for which others may have waited.
void something_happened();

}  // namespace fake_warp
