#pragma once
/// The bytes of a file in memory.

#include <array>
#include <map>
#include <memory>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Sparse bytes that share their blocks with copies of them.
class MemoryBytes {
 public:
  static constexpr i64 kBlockBytes = 4096;

  i64 size() const { return size_; }
  void resize(i64 size);
  void read(void* out, i64 bytes, i64 offset) const;
  void write(const void* from, i64 bytes, i64 offset);
  /// Bytes of the blocks in [begin, end) that hold something; both are multiples of a block. Holes take nothing.
  i64 taken(i64 begin, i64 end) const;

 private:
  using Block = std::array<char, kBlockBytes>;
  i64 size_ = 0;
  std::map<i64, std::shared_ptr<Block>> blocks_;
};

}  // namespace glu_ckpt
