#pragma once
/// Names and files of a safetensors checkpoint being written. The sink itself is create_sink() of
/// glu_ckpt/checkpoint.hpp.

#include <filesystem>
#include <string>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// "model.safetensors" where there is one shard, else "model-00001-of-00042.safetensors"; `shard` is 0-based.
std::string shard_name(u32 shard, u32 num_shards);

/// True where the path names one file rather than a directory.
bool names_single_file(const std::filesystem::path& path);

}  // namespace glu_ckpt
