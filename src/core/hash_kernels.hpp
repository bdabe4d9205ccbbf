#pragma once
/// The inner loops of XXH3's long hash, for the vector lengths there are.
///
/// A state is eight lanes of 64 bits. A stripe of 64 bytes adds to each lane; the 16 stripes of a block of 1024 bytes
/// are read with a secret that moves on by 8 bytes a stripe, and after a block the state is scrambled.

#include <array>
#include <cstddef>
#include <span>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

inline constexpr i64 kStripeBytes = 64;
inline constexpr i64 kHashBlockBytes = 1024;
inline constexpr i64 kStripesPerBlock = kHashBlockBytes / kStripeBytes;
inline constexpr i64 kSecretBytes = 192;
/// Between the places in the secret of two stripes.
inline constexpr i64 kSecretStep = 8;

using HashLanes = std::array<u64, 8>;

enum class HashPath { Avx512, Avx2, Plain };

struct HashKernels {
  /// What `stripes` stripes add to `lanes`; `secret` is that of the first one.
  void (*add_stripes)(u64* lanes, const std::byte* data, i64 stripes, const std::byte* secret);
  /// Whole blocks, each followed by its scramble.
  void (*add_blocks)(u64* lanes, const std::byte* data, i64 blocks, const std::byte* secret);
  /// What each block adds by itself: eight lanes a block.
  void (*sum_blocks)(u64* sums, const std::byte* data, i64 blocks, const std::byte* secret);
};

/// Those that this processor has, the fastest first; Plain is always the last.
std::span<const HashPath> hash_paths();
const HashKernels& hash_kernels(HashPath path);

/// The scramble that follows a block.
void scramble(HashLanes& lanes, const std::byte* secret);

}  // namespace glu_ckpt
