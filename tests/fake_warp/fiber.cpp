#include "fake_warp/fiber.hpp"

#include <cstdlib>

namespace fake_warp {

constexpr std::size_t kStackBytes = 256 * 1024;

// Apart from everything else, for getcontext() may return twice.
void Fiber::begin(void (*main)()) {
  stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  if (getcontext(&context) != 0) std::abort();
  context.uc_stack.ss_sp = stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, main, 0);
}

void switch_to(ucontext_t& from, ucontext_t& to) {
  if (swapcontext(&from, &to) != 0) std::abort();
}

}  // namespace fake_warp
