#pragma once
/// The room that an output needs on its file system, and the one sentence about it.

#include <string>

#include "convert/conversion.hpp"
#include "io/filesystem.hpp"

namespace glu_ckpt {

struct DiskRoom {
  /// Bytes of tensors, headers and the source's other files, at the most.
  i64 needed = 0;
  FilesystemInfo filesystem;

  bool is_enough() const { return needed <= filesystem.free_bytes; }
};

/// Looks at the output's file system as it is now. Throws Io, NotFound.
DiskRoom disk_room(const Conversion& conversion, i64 bytes_written);

/// Says what the output needs, what is free and what is missing.
std::string to_text(const DiskRoom& room);

}  // namespace glu_ckpt
