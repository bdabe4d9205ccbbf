#pragma once
/// XXH3-128 (seed 0) of a file whose bytes come in any order.
///
/// What a block of 1024 bytes adds to the state of the hash depends on its bytes alone; only the scramble after it
/// depends on the blocks before. So blocks are summed as they come, 64 bytes each, and put in order at the end.

#include <span>

#include "core/hash.hpp"
#include "core/hash_kernels.hpp"

namespace glu_ckpt {

/// What a block adds. All zeros stand for a sum that is not known.
struct BlockSum {
  HashLanes lanes;
  bool is_known() const { return lanes != HashLanes{}; }
  bool operator==(const BlockSum&) const = default;
};

/// One sum for each 1024 bytes; `bytes` has no more than that.
void sum_blocks(std::span<const std::byte> bytes, std::span<BlockSum> sums, HashPath path = hash_paths().front());

/// Blocks of a file of `bytes` bytes that go through the chain: all but the last one, whole or not.
i64 chained_blocks(i64 bytes);
/// What finish() wants from the end of the file, for its last stripe is counted from there: 64 to 1024 bytes, or the
/// file where it is shorter than that.
i64 hash_tail_bytes(i64 bytes);

/// Blocks in order.
class BlockChain {
 public:
  BlockChain();
  void add(std::span<const BlockSum> sums);
  /// Of a file of `bytes` bytes, after its chained_blocks(bytes) sums. `tail` is its last hash_tail_bytes(bytes).
  Hash128 finish(i64 bytes, std::span<const std::byte> tail) const;

 private:
  HashLanes lanes_;
};

}  // namespace glu_ckpt
