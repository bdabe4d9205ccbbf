#pragma once
/// Small checkpoints on disk, read and written whole.

#include <filesystem>
#include <string>
#include <vector>

#include "support/memory_checkpoint.hpp"

namespace glu_ckpt::support {

/// All tensors with their bytes.
std::vector<MemoryTensor> read_tensors(const Source& source);
std::vector<MemoryTensor> read_tensors(const std::filesystem::path& path);

/// One file of tensors with a config.json beside it, and no record of any conversion.
void write_checkpoint(const std::filesystem::path& path, const std::vector<MemoryTensor>& tensors,
                      const std::string& config);

}  // namespace glu_ckpt::support
