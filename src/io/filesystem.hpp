#pragma once
/// What a path lies on.

#include <filesystem>
#include <string>

#include "glu_ckpt/tensor.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

struct FilesystemInfo {
  /// "ext4", "xfs", ...; the magic number in hexadecimal where it is not known.
  std::string type;
  /// For this user.
  i64 free_bytes = 0;
  i64 total_bytes = 0;
  i64 block_bytes = 0;
};

/// Of the nearest directory that exists at or above `path`. Throws Io.
FilesystemInfo filesystem_of(const std::filesystem::path& path);

/// Whether a file in this directory can share blocks of `block_bytes` bytes with `source`: tried with a file that has
/// no name. False as well where the directory cannot hold such a file.
bool can_clone_into(const std::filesystem::path& directory, const File& source, i64 block_bytes);

}  // namespace glu_ckpt
