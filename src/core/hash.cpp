#include "core/hash.hpp"

#include <fmt/format.h>

#include "core/long_hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace glu_ckpt {

Hash128& Hash128::operator+=(const Hash128& other) {
  const u64 sum = low + other.low;
  high += other.high + (sum < low ? 1 : 0);
  low = sum;
  return *this;
}

namespace {

/// A row of a few KiB takes half the time of the header's build for any x86-64 (SSE2).
Hash128 hash128_long(std::span<const std::byte> bytes, u64 seed, const HashKernels& kernels) {
  const HashSecret secret = secret_of(seed);
  HashLanes lanes = first_lanes();
  const auto count = static_cast<i64>(bytes.size());
  const i64 blocks = (count - 1) / kHashBlockBytes;
  kernels.add_blocks(lanes.data(), bytes.data(), blocks, secret.data());
  return finish_long_hash(
      lanes, bytes.subspan(static_cast<std::size_t>(blocks > 0 ? blocks * kHashBlockBytes - kStripeBytes : 0)), count,
      secret, kernels);
}

}  // namespace

u64 hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

Hash128 hash128(std::span<const std::byte> bytes, u64 seed) {
  // The header's own code beats the plain loops, and knows the short lengths.
  const HashPath path = hash_paths().front();
  if (path != HashPath::Plain && bytes.size() > kMaxShortHashBytes)
    return hash128_long(bytes, seed, hash_kernels(path));
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
