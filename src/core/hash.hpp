#pragma once
/// XXH3 hashes (https://xxhash.com), built header-only for the CPU at hand.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

struct Hash128 {
  u64 low = 0;
  u64 high = 0;
  bool operator==(const Hash128&) const = default;
  /// Sum modulo 2^128.
  Hash128& operator+=(const Hash128& other);
};

u64 hash64(std::string_view text);
Hash128 hash128(std::span<const std::byte> bytes, u64 seed);
/// 32 hexadecimal digits, high half first.
std::string hex(const Hash128& hash);

/// XXH3-128 of a stream, seed 0.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(const StreamHash&) = delete;
  StreamHash& operator=(const StreamHash&) = delete;
  void update(std::span<const std::byte> bytes);
  Hash128 finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glu_ckpt
