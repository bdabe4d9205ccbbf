#include "exec/host_buffer.hpp"

#include <sys/mman.h>

namespace glu_ckpt {
namespace {

constexpr i64 kHugePageBytes = i64{2} << 20;

}  // namespace

void* HostBuffer::allocate(i64 bytes) {
  const i64 alignment = bytes < kHugePageBytes ? kPageBytes : kHugePageBytes;
  void* const memory =
      std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(round_up(bytes, alignment)));
  // Advice: without huge pages it works as well.
  if (memory != nullptr && alignment == kHugePageBytes)
    (void)::madvise(memory, static_cast<std::size_t>(bytes / kHugePageBytes * kHugePageBytes), MADV_HUGEPAGE);
  return memory;
}

}  // namespace glu_ckpt
