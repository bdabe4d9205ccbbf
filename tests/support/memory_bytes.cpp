#include "support/memory_bytes.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace glu_ckpt {

void MemoryBytes::resize(i64 size) {
  if (size < size_) {
    blocks_.erase(blocks_.lower_bound((size + kBlockBytes - 1) / kBlockBytes), blocks_.end());
    // What lies past the end of the last block must read as zeros if the file grows again.
    const auto last = blocks_.find(size / kBlockBytes);
    if (last != blocks_.end()) {
      auto block = std::make_shared<Block>(*last->second);
      std::fill(block->begin() + size % kBlockBytes, block->end(), '\0');
      last->second = std::move(block);
    }
  }
  size_ = size;
}

void MemoryBytes::read(void* out, i64 bytes, i64 offset) const {
  for (i64 done = 0; done < bytes;) {
    const i64 at = offset + done;
    const i64 within = at % kBlockBytes;
    const i64 now = std::min(bytes - done, kBlockBytes - within);
    const auto block = blocks_.find(at / kBlockBytes);
    char* const to = static_cast<char*>(out) + done;
    if (block == blocks_.end())
      std::memset(to, 0, static_cast<std::size_t>(now));
    else
      std::memcpy(to, block->second->data() + within, static_cast<std::size_t>(now));
    done += now;
  }
}

i64 MemoryBytes::taken(i64 begin, i64 end) const {
  const auto first = blocks_.lower_bound(begin / kBlockBytes), last = blocks_.lower_bound(end / kBlockBytes);
  return begin < end ? std::distance(first, last) * kBlockBytes : 0;
}

void MemoryBytes::write(const void* from, i64 bytes, i64 offset) {
  for (i64 done = 0; done < bytes;) {
    const i64 at = offset + done;
    const i64 within = at % kBlockBytes;
    const i64 now = std::min(bytes - done, kBlockBytes - within);
    std::shared_ptr<Block>& block = blocks_[at / kBlockBytes];
    if (!block)
      block = std::make_shared<Block>();
    else if (block.use_count() > 1)
      block = std::make_shared<Block>(*block);
    std::memcpy(block->data() + within, static_cast<const char*>(from) + done, static_cast<std::size_t>(now));
    done += now;
  }
  size_ = std::max(size_, offset + bytes);
}

}  // namespace glu_ckpt
