#pragma once
/// A copy for outputs that are larger than the caches.

#include <cstddef>

namespace glu_ckpt {

/// memcpy(), past the caches where the processor can: a line that is written whole need not be read before. Slower than
/// memcpy() where the output is read again soon.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace glu_ckpt
