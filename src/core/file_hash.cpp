#include "core/file_hash.hpp"

#include <algorithm>

#include "core/long_hash.hpp"

namespace glu_ckpt {

void sum_blocks(std::span<const std::byte> bytes, std::span<BlockSum> sums, HashPath path) {
  static_assert(sizeof(BlockSum) == sizeof(HashLanes));
  if (sums.empty()) return;
  hash_kernels(path).sum_blocks(sums.front().lanes.data(), bytes.data(), static_cast<i64>(sums.size()),
                                default_secret().data());
}

i64 chained_blocks(i64 bytes) { return bytes <= kHashBlockBytes ? 0 : (bytes - 1) / kHashBlockBytes; }

i64 hash_tail_bytes(i64 bytes) {
  if (bytes <= kHashBlockBytes) return bytes;
  return std::max(kStripeBytes, bytes - chained_blocks(bytes) * kHashBlockBytes);
}

BlockChain::BlockChain() : lanes_(first_lanes()) {}

void BlockChain::add(std::span<const BlockSum> sums) {
  const std::byte* const secret = default_secret().data();
  for (const BlockSum& sum : sums) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i] += sum.lanes[i];
    scramble(lanes_, secret);
  }
}

Hash128 BlockChain::finish(i64 bytes, std::span<const std::byte> tail) const {
  if (bytes <= kMaxShortHashBytes) return hash128(tail, 0);
  return finish_long_hash(lanes_, tail, bytes, default_secret(), hash_kernels(HashPath::Plain));
}

}  // namespace glu_ckpt
