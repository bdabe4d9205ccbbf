#pragma once
/// The checksum of a file's data, as glu_ckpt.json records it: the sum modulo 2^128 of XXH3-128 of each block of 1 MiB,
/// seeded with the block's number. A sum does not depend on the order, so it is made while bytes pass, whatever comes
/// first.

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "core/byte_fields.hpp"
#include "core/hash.hpp"

namespace glu_ckpt {

inline constexpr i64 kDataBlockBytes = i64{1} << 20;

/// The checksum of data that are in memory, or what a part of them adds to it: the part begins with block `first_block`
/// and holds whole blocks, but for the last block of the data, which may be shorter.
Hash128 hash_data(std::span<const std::byte> bytes, i64 first_block = 0);

/// Bytes of memory that the files of an output share to keep what their DataHashers cannot hash yet. Thread safe.
class HashMemory {
 public:
  explicit HashMemory(i64 bytes) : left_(bytes) {}
  bool try_take(i64 bytes);
  void give_back(i64 bytes) { left_ += bytes; }

 private:
  std::atomic<i64> left_;
};

/// Makes the checksum of data whose ranges come once each, in any order and from any thread.
///
/// A block that lies in one range is hashed at once. A block that several ranges share is hashed range by range, in
/// order; a range that comes before the one in front of it is kept until then, as far as there is memory. Blocks that
/// this leaves incomplete are read again by finish().
class DataHasher {
 public:
  /// `memory` outlives the hasher.
  DataHasher(i64 bytes, HashMemory& memory);
  ~DataHasher();
  DataHasher(const DataHasher&) = delete;
  DataHasher& operator=(const DataHasher&) = delete;

  /// Thread safe.
  void add(i64 offset, std::span<const std::byte> bytes);
  /// Writes the blocks that are complete, and their sum, for another process of the run. No thread adds meanwhile.
  void export_to(ByteWriter& out) const;
  /// Takes what another process exported. Throws Io where a block comes twice or does not exist.
  void import_from(ByteReader& in);
  /// Returns the checksum after all data have been added or imported. `read` fills a range from an offset of the data.
  Hash128 finish(const std::function<void(std::span<std::byte>, i64)>& read) const;

 private:
  enum class BlockState : char { Open, Hashed, ReadAgain };
  /// A block of which some ranges have come.
  struct Partial {
    StreamHash hash;
    /// Bytes from the block's beginning that are in `hash`.
    i64 hashed = 0;
    /// Ranges behind them, by their offset in the block.
    std::map<i64, std::vector<std::byte>> early;
  };
  /// Blocks are spread over several locks, so that threads seldom wait for one another.
  struct Stripe {
    std::mutex mutex;
    std::map<i64, Partial> partials;
  };

  i64 block_bytes(i64 block) const;
  BlockState& state_of(i64 block) { return states_[static_cast<std::size_t>(block)]; }
  void add_sum(const Hash128& sum);
  void add_part(i64 block, i64 offset, std::span<const std::byte> part);
  bool join(Partial& partial, i64 offset, std::span<const std::byte> part);
  void forget(Stripe& stripe, std::map<i64, Partial>::iterator partial);

  i64 bytes_;
  HashMemory& memory_;
  /// One for each block.
  std::vector<BlockState> states_;
  std::array<Stripe, 16> stripes_;
  std::mutex sum_mutex_;
  Hash128 sum_;
};

}  // namespace glu_ckpt
