#pragma once
/// Host memory that is used again and again, for new pages cost more than reading into them. Huge pages where the
/// kernel has them, so that direct I/O pins few of them.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/checked_math.hpp"
#include "io/page_bytes.hpp"

namespace glu_ckpt {

class HostBuffer {
 public:
  /// Makes room for `bytes`, the first at an address that is `phase` mod kPageBytes; what was in it is lost. Never more
  /// than one page above what was asked for.
  std::byte* reserve(i64 bytes, i64 phase = 0) {
    if (bytes + phase > bytes_) {
      memory_.reset();
      bytes_ = round_up(bytes + phase, kPageBytes);
      memory_.reset(static_cast<std::byte*>(allocate(bytes_)));
      if (!memory_) {
        bytes_ = 0;
        throw std::bad_alloc();
      }
    }
    return memory_.get() + phase;
  }
  /// The room that reserve() made with no phase.
  std::byte* data() const { return memory_.get(); }
  i64 bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static void* allocate(i64 bytes);

  std::unique_ptr<std::byte, Free> memory_;
  i64 bytes_ = 0;
};

}  // namespace glu_ckpt
