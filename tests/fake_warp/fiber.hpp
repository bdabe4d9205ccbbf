#pragma once
/// A thread of a GPU as a fiber of the test's own thread.

#include <ucontext.h>

#include <memory>

namespace fake_warp {

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack;

  /// Makes it ready to run `main`, which must not return.
  void begin(void (*main)());
};

void switch_to(ucontext_t& from, ucontext_t& to);

}  // namespace fake_warp
