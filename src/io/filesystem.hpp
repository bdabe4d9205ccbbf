#pragma once
/// The filesystem that a path lies on.

#include <filesystem>
#include <optional>
#include <string>

#include "glu_ckpt/tensor.hpp"
#include "io/file.hpp"

namespace glu_ckpt {

struct FilesystemInfo {
  /// Returns true where no write ever waits for a device.
  bool is_in_memory() const { return type == "tmpfs"; }

  /// "ext4", "xfs", ...; the magic number in hexadecimal where it is not known.
  std::string type;
  /// The bytes that are free for this user.
  i64 free_bytes = 0;
  i64 total_bytes = 0;
  i64 block_bytes = 0;
};

/// The abilities of a directory's filesystem, tried on files without a name or, where it has none, on files whose name
/// is removed at once.
struct IoAbilities {
  /// False where the directory cannot be written to; then nothing else is known.
  bool known = false;
  /// Writes past the page cache.
  bool direct = false;
  /// Files that share blocks.
  bool clones = false;
  /// Locks of files, as far as this host sees.
  bool locks = false;
};
IoAbilities io_abilities(const std::filesystem::path& directory);

/// Bytes a second that threads write as a conversion does, flushed: all of them into one file, and each into a file of
/// its own.
struct WriteRates {
  int threads = 0;
  double one_file = 0;
  double several_files = 0;
};
/// Tried on files as io_abilities() has them. Nothing where those cannot be made, the disk has too little room, or a
/// write fails.
std::optional<WriteRates> measure_writes(const std::filesystem::path& directory, int threads);

/// The filesystem of the nearest directory that exists at or above `path`. Throws Io.
FilesystemInfo filesystem_of(const std::filesystem::path& path);

/// Returns true where a file in this directory can share blocks of `block_bytes` bytes with `source`: tried with a file
/// that has no name. False as well where the directory cannot hold such a file. Throws NoSpace: a full disk says
/// neither.
bool can_clone_into(const std::filesystem::path& directory, const File& source, i64 block_bytes);

}  // namespace glu_ckpt
