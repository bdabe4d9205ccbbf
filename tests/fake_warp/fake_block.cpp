#include "fake_warp/fake_block.hpp"

#include <cstdlib>
#include <vector>

#include "fake_warp/fiber.hpp"

namespace fake_warp {
namespace {

constexpr unsigned kWarp = 32;

enum class Wait { Warp, Block, Ended };

struct Thread : Fiber {
  Wait wait = Wait::Warp;
};

ucontext_t scheduler;
Thread* current = nullptr;
const std::function<void()>* body = nullptr;

void fiber_main() {
  (*body)();
  current->wait = Wait::Ended;
  switch_to(current->context, scheduler);
}

void pause(Wait wait) {
  current->wait = wait;
  switch_to(current->context, scheduler);
}

/// One step of all lanes, and what they wait for then. Lanes of a warp that wait for different things would
/// hang a GPU.
Wait step_warp(std::vector<Thread>& fibers, unsigned first) {
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    current = &fibers[first + lane];
    threadIdx.x = first + lane;
    switch_to(scheduler, current->context);
  }
  const Wait wait = fibers[first].wait;
  for (unsigned lane = 1; lane < kWarp; ++lane)
    if (fibers[first + lane].wait != wait) std::abort();
  return wait;
}

/// Until it comes to a barrier of the block, or to its end.
Wait run_warp(std::vector<Thread>& fibers, unsigned first) {
  if (fibers[first].wait == Wait::Ended) return Wait::Ended;
  Wait wait = Wait::Warp;
  while (wait == Wait::Warp) wait = step_warp(fibers, first);
  return wait;
}

}  // namespace

void run_block(unsigned block, unsigned threads, const std::function<void()>& thread) {
  blockIdx.x = block;
  blockDim.x = threads;
  body = &thread;
  std::vector<Thread> fibers(threads);
  for (Thread& fiber : fibers) fiber.begin(fiber_main);
  unsigned ended = 0;
  while (ended < threads) {
    ended = 0;
    for (unsigned first = 0; first < threads; first += kWarp)
      if (run_warp(fibers, first) == Wait::Ended) ended += kWarp;
    // A barrier that some warps never reach.
    if (ended != 0 && ended != threads) std::abort();
  }
}

void wait_for_block() { pause(Wait::Block); }
void wait_for_warp() { pause(Wait::Warp); }
unsigned lane() { return threadIdx.x % kWarp; }

}  // namespace fake_warp
