#pragma once
/// How XXH3's long hash, of more than 240 bytes, begins and ends.

#include <array>
#include <cstddef>
#include <span>

#include "core/hash.hpp"
#include "core/hash_kernels.hpp"

namespace glu_ckpt {

/// Shorter inputs have hashes of their own kinds.
inline constexpr i64 kMaxShortHashBytes = 240;

using HashSecret = std::array<std::byte, kSecretBytes>;
HashSecret secret_of(u64 seed);
/// Of seed 0.
const HashSecret& default_secret();

HashLanes first_lanes();
/// `lanes` after all blocks but the last, `tail` the bytes from there on, or the last 64 where those are fewer: of
/// `bytes` bytes in all.
Hash128 finish_long_hash(HashLanes lanes, std::span<const std::byte> tail, i64 bytes, const HashSecret& secret,
                         const HashKernels& kernels);

}  // namespace glu_ckpt
