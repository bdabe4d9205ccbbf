#include "core/hash.hpp"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace glu_ckpt {

Hash128& Hash128::operator+=(const Hash128& other) {
  const u64 sum = low + other.low;
  high += other.high + (sum < low ? 1 : 0);
  low = sum;
  return *this;
}

u64 hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

Hash128 hash128(std::span<const std::byte> bytes, u64 seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
  return {hash.low64, hash.high64};
}

std::string hex(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash.high, hash.low); }

struct StreamHash::State {
  XXH3_state_t xxh;
};

StreamHash::StreamHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
StreamHash::~StreamHash() = default;

void StreamHash::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

Hash128 StreamHash::finish() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.low64, hash.high64};
}

}  // namespace glu_ckpt
