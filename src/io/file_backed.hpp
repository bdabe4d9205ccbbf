#pragma once
/// Tensors as they are stored in files, for those who do more with a source than read it: they share its blocks, read
/// it ahead, or keep it in the page cache.

#include <cstddef>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

class File;

/// A position in a file; nowhere where `file` is null.
struct FilePlace {
  const File* file = nullptr;
  i64 offset = 0;
};

class FileBacked {
 public:
  virtual ~FileBacked() = default;
  /// The position of byte 0 of the tensor if its bytes are one range of one file as Source::read() gives them; else
  /// nowhere. The file belongs to the Source and is open for reading only.
  virtual FilePlace place(std::size_t tensor) const = 0;
  /// Returns true where reads go past the page cache if it does not hold the bytes, so that a buffer should begin at
  /// the same position of its page as the bytes do in theirs.
  virtual bool reads_past_cache(std::size_t tensor) const = 0;
  /// Makes later reads go through the page cache, because all of it will be read again soon.
  virtual void keep_in_cache() const = 0;
};

}  // namespace glu_ckpt
