#pragma once
/// XXH3 hashes (https://xxhash.com), computed by libxxhash.

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
  /// This is the sum modulo 2^128.
  Hash128& operator+=(const Hash128& other);
};

u64 hash64(std::string_view text);
Hash128 hash128(std::span<const std::byte> bytes, u64 seed);
/// Prints 32 hexadecimal digits, the high half first.
std::string hex(const Hash128& hash);

/// XXH3-128 of bytes that come one range after another.
class StreamHash {
 public:
  explicit StreamHash(u64 seed);
  void update(std::span<const std::byte> bytes);
  Hash128 finish() const;

 private:
  struct Release {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Release> state_;
};

}  // namespace glu_ckpt
