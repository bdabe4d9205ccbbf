#pragma once
/// Files of torch.save being written.

#include <memory>
#include <vector>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

std::unique_ptr<Sink> create_torch_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors);

}  // namespace glu_ckpt
