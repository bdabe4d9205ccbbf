#pragma once
/// torch-dist directories opened without open_source().

#include "format/checkpoint_files.hpp"

namespace glu_ckpt {

inline std::unique_ptr<Source> open_dist(const std::filesystem::path& path) {
  CheckpointFiles files;
  files.format = Format::TorchDist;
  files.path = path;
  files.directory = path;
  return read_torch_dist(files);
}

}  // namespace glu_ckpt
