#pragma once
/// A safetensors checkpoint being written.

#include <memory>
#include <string>

#include "glu_ckpt/checkpoint.hpp"

namespace glu_ckpt {

/// "model.safetensors" where there is one shard, else "model-00001-of-00042.safetensors"; `shard` is 0-based.
std::string shard_name(u32 shard, u32 num_shards);

std::unique_ptr<Sink> create_safetensors_sink(const SinkOptions& options, const std::vector<OutputTensor>& tensors);

}  // namespace glu_ckpt
