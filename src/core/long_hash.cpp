#include "core/long_hash.hpp"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace glu_ckpt {
namespace {

__extension__ typedef unsigned __int128 Wide;

// The primes of the specification.
constexpr u64 kPrime32_1 = 0x9E3779B1U;
constexpr u64 kPrime32_2 = 0x85EBCA77U;
constexpr u64 kPrime32_3 = 0xC2B2AE3DU;
constexpr u64 kPrime64_1 = 0x9E3779B185EBCA87U;
constexpr u64 kPrime64_2 = 0xC2B2AE3D27D4EB4FU;
constexpr u64 kPrime64_3 = 0x165667B19E3779F9U;
constexpr u64 kPrime64_4 = 0x85EBCA77C2B2AE63U;
constexpr u64 kPrime64_5 = 0x27D4EB2F165667C5U;
constexpr u64 kAvalanchePrime = 0x165667919E3779F9U;
// Places in the secret: of the last stripe, and of the lanes as they become the two halves.
constexpr i64 kLastStripeAt = kSecretBytes - kStripeBytes - 7;
constexpr i64 kLowHalfAt = 11;
constexpr i64 kHighHalfAt = kSecretBytes - kStripeBytes - 11;

u64 load_u64(const std::byte* from) {
  u64 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

u64 merge(const HashLanes& lanes, const std::byte* secret, u64 start) {
  u64 hash = start;
  for (std::size_t i = 0; i < lanes.size(); i += 2) {
    const Wide product = static_cast<Wide>(lanes[i] ^ load_u64(secret + 8 * i)) * (lanes[i + 1] ^ load_u64(secret + 8 * i + 8));
    hash += static_cast<u64>(product) ^ static_cast<u64>(product >> 64);
  }
  hash = (hash ^ hash >> 37) * kAvalanchePrime;
  return hash ^ hash >> 32;
}

}  // namespace

HashSecret secret_of(u64 seed) {
  HashSecret secret;
  XXH3_generateSecret_fromSeed(secret.data(), seed);
  return secret;
}

const HashSecret& default_secret() {
  static const HashSecret secret = secret_of(0);
  return secret;
}

HashLanes first_lanes() {
  return {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
}

Hash128 finish_long_hash(HashLanes lanes, std::span<const std::byte> tail, i64 bytes, const HashSecret& secret,
                         const HashKernels& kernels) {
  const i64 last_block_bytes = bytes - (bytes - 1) / kHashBlockBytes * kHashBlockBytes;
  const std::byte* const end = tail.data() + tail.size();
  const i64 stripes = (last_block_bytes - 1) / kStripeBytes;
  if (stripes > 0) kernels.add_stripes(lanes.data(), end - last_block_bytes, stripes, secret.data());
  kernels.add_stripes(lanes.data(), end - kStripeBytes, 1, secret.data() + kLastStripeAt);
  const auto length = static_cast<u64>(bytes);
  return {merge(lanes, secret.data() + kLowHalfAt, length * kPrime64_1),
          merge(lanes, secret.data() + kHighHalfAt, ~(length * kPrime64_2))};
}

}  // namespace glu_ckpt
