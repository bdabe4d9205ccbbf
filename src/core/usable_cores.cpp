#include "core/usable_cores.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace glu_ckpt {

int usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // Fails where the machine has more processors than the set has room for.
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace glu_ckpt
