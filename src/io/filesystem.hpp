#pragma once
/// What a path lies on.

#include <filesystem>
#include <string>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

struct FilesystemInfo {
  /// "ext4", "xfs", ...; the magic number in hexadecimal where it is not known.
  std::string type;
  /// For this user.
  i64 free_bytes = 0;
  i64 total_bytes = 0;
};

/// Of the nearest directory that exists at or above `path`. Throws Io.
FilesystemInfo filesystem_of(const std::filesystem::path& path);

}  // namespace glu_ckpt
