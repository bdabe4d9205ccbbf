#pragma once
/// One expert's weights in memory, as the checkpoint stores them.

#include <vector>

#include "glu_ckpt/forward.hpp"
#include "glu_ckpt/verify.hpp"

namespace glu_ckpt {

/// The bytes of an expert, and where its matrices lie in them.
struct LoadedExpert {
  ExpertWeights weights;
  /// One for each stored tensor.
  std::vector<std::vector<std::byte>> buffers;
};

/// The matrices of an expert of a block.
std::vector<const Matrix*> expert_matrices(const ExpertBlock& block, i64 expert);

/// Bytes that load_expert() reads and keeps.
i64 expert_bytes(const std::vector<const Matrix*>& matrices);

/// Reads from each tensor the bytes from the first to the last of the expert's, into the buffers that `loaded` has:
/// pages that are new cost more than the reading. Throws NotSupported for scales and dtypes that cannot be computed
/// with, UnknownGlu where the order of gate and up is unknown.
void load_expert(const Source& source, const std::vector<const Matrix*>& matrices, LoadedExpert& loaded);

}  // namespace glu_ckpt
