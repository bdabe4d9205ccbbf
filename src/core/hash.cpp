#include "core/hash.hpp"

#include <fmt/format.h>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
// It makes the names of xxhash.h stand for functions that use AVX2 or AVX-512 where the processor has them.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace glu_ckpt {
namespace {

Hash128 to_hash128(const XXH128_hash_t& hash) { return {hash.low64, hash.high64}; }

}  // namespace

Hash128& Hash128::operator+=(const Hash128& other) {
  const u64 sum = low + other.low;
  high += other.high + (sum < low ? 1 : 0);
  low = sum;
  return *this;
}

u64 hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

Hash128 hash128(std::span<const std::byte> bytes, u64 seed) {
  return to_hash128(XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed));
}

std::string hex(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash.high, hash.low); }

void StreamHash::Release::operator()(void* state) const { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }

StreamHash::StreamHash(u64 seed) : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset_withSeed(static_cast<XXH3_state_t*>(state_.get()), seed);
}

void StreamHash::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
}

Hash128 StreamHash::finish() const {
  return to_hash128(XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_.get())));
}

}  // namespace glu_ckpt
