#pragma once
/// The end of execute() that takes the tensors of an output.

#include <span>

#include "io/file_backed.hpp"

namespace glu_ckpt {

/// Takes tensors' bytes. All of it is thread safe.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Writes a range of a tensor. Every byte must be written once, in any order.
  virtual void write(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) = 0;
  /// The position of byte 0 of the tensor in its file; -1 where the tensor is cut into pieces that do not follow one
  /// another. Memory at the same position of its page is written without another copy.
  virtual i64 file_offset(std::size_t tensor) const = 0;
};

/// A Sink that another run can go on with, and that can share blocks with other files.
class DurableSink : public Sink {
 public:
  /// Reads bytes that were written, by this run or by the one that is resumed. Throws Io.
  virtual void read_back(std::size_t tensor, i64 offset, std::span<std::byte> out) const = 0;
  /// Counts as write() of bytes that are known to be in place already.
  virtual void adopt(std::size_t tensor, i64 offset, std::span<const std::byte> bytes) = 0;
  /// Has `bytes` bytes from `offset` of the tensor on share the blocks of a file that holds them already. False, with
  /// nothing done, where the file system does not allow it for these places; then they are to be written. Throws
  /// NoSpace, Io.
  virtual bool clone(std::size_t tensor, i64 offset, const FilePlace& from, i64 bytes) = 0;
};

}  // namespace glu_ckpt
