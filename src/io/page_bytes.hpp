#pragma once
/// Memory that can go to a file past the page cache.

#include <cstddef>
#include <memory>
#include <new>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// The size of a page of memory and of the page cache; a multiple of every disk's block.
inline constexpr i64 kPageBytes = 4096;

struct FreePages {
  void operator()(std::byte* pages) const { ::operator delete[](pages, std::align_val_t{kPageBytes}); }
};
using PageBytes = std::unique_ptr<std::byte[], FreePages>;

/// Returns memory that is not initialized; its first byte begins a page.
inline PageBytes make_pages(i64 bytes) {
  return PageBytes(new (std::align_val_t{kPageBytes}) std::byte[static_cast<std::size_t>(bytes)]);
}

}  // namespace glu_ckpt
