#pragma once
/// Buffers under a memory bound.

#include <cstddef>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Makes room for `bytes`; what was in it is lost. Not resize(), which keeps the old buffer beside the new one until it
/// is copied, and asks for up to twice the old size.
inline void grow_buffer(std::vector<std::byte>& buffer, i64 bytes) {
  if (static_cast<i64>(buffer.size()) >= bytes) return;
  std::vector<std::byte>().swap(buffer);
  buffer.resize(static_cast<std::size_t>(bytes));
}

}  // namespace glu_ckpt
