#pragma once
/// Writes torch.distributed.checkpoint directories, as Megatron's torch_dist has them.

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// Throws Usage where the output's path names a file, NotExact where torch has no dtype for a tensor.
std::unique_ptr<Sink> create_torch_dist_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors);

}  // namespace glu_ckpt
