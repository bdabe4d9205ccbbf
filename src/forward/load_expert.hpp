#pragma once
/// Experts' weights in memory, as the checkpoint stores them.

#include <span>
#include <vector>

#include "exec/host_buffer.hpp"
#include "glu_ckpt/forward.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Bytes [begin, end) of a stored tensor, and where they begin among what an expert takes in memory.
struct ExpertWindow {
  std::size_t tensor = 0;
  i64 begin = 0;
  i64 end = 0;
  i64 at = 0;
  /// The offset of these weights once they are dequantized to bf16; -1 where they are not quantized.
  i64 wide_at = -1;
};

/// The part of a checkpoint that is one expert's.
struct StoredExpert {
  std::vector<const Matrix*> matrices;
  /// One for each tensor: from the first to the last of its bytes that are the expert's.
  std::vector<ExpertWindow> windows;
  /// Bytes to read, and bytes in memory, where each window begins a cache line and what is dequantized is held twice.
  i64 bytes = 0;
  i64 held_bytes = 0;
};

/// The experts of a block, by number.
std::vector<StoredExpert> stored_experts(const ExpertBlock& block);

/// Reads these experts into `buffer`, one behind the other, with `jobs` threads. Pointers are good until the buffer is
/// used again. Weights in MXFP8 become bf16. `on_progress` gets bytes read, from any thread. Throws NotSupported for
/// other scales, NotExact where a value is none of bf16's, UnknownGlu where the order of gate and up is unknown, and
/// what reading throws.
std::vector<ExpertWeights> load_experts(const Source& source, const std::vector<const StoredExpert*>& experts,
                                        HostBuffer& buffer, int jobs, const std::function<void(i64)>& on_progress);

}  // namespace glu_ckpt
