#include "core/hash_kernels.hpp"

#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace glu_ckpt {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/// XXH_PRIME32_1.
constexpr u64 kScrambleFactor = 0x9E3779B1U;
/// Of the secret, for a scramble.
constexpr i64 kScrambleAt = kSecretBytes - kStripeBytes;

ALWAYS_INLINE u64 load(const std::byte* from) {
  u64 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Each variant from here on has the same five functions. A lane gets the product of the halves of data ^ secret, and
// the data of its neighbour as it is.

ALWAYS_INLINE void stripe_plain(u64* lanes, const std::byte* data, const std::byte* secret) {
  for (std::size_t i = 0; i < 8; ++i) {
    const u64 value = load(data + 8 * i);
    const u64 keyed = value ^ load(secret + 8 * i);
    lanes[i ^ 1] += value;
    lanes[i] += (keyed & 0xFFFFFFFFU) * (keyed >> 32);
  }
}

ALWAYS_INLINE void scramble_plain(u64* lanes, const std::byte* secret) {
  for (std::size_t i = 0; i < 8; ++i)
    lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ load(secret + kScrambleAt + 8 * static_cast<i64>(i))) * kScrambleFactor;
}

void add_stripes_plain(u64* lanes, const std::byte* data, i64 stripes, const std::byte* secret) {
  for (i64 s = 0; s < stripes; ++s) stripe_plain(lanes, data + s * kStripeBytes, secret + s * kSecretStep);
}

void add_blocks_plain(u64* lanes, const std::byte* data, i64 blocks, const std::byte* secret) {
  for (i64 b = 0; b < blocks; ++b) {
    add_stripes_plain(lanes, data + b * kHashBlockBytes, kStripesPerBlock, secret);
    scramble_plain(lanes, secret);
  }
}

void sum_blocks_plain(u64* sums, const std::byte* data, i64 blocks, const std::byte* secret) {
  std::memset(sums, 0, static_cast<std::size_t>(blocks) * sizeof(HashLanes));
  for (i64 b = 0; b < blocks; ++b)
    add_stripes_plain(sums + 8 * b, data + b * kHashBlockBytes, kStripesPerBlock, secret);
}

#if defined(__x86_64__)
#define TARGET_AVX2 __attribute__((target("avx2")))
#define TARGET_AVX512 __attribute__((target("avx512f")))

/// The upper halves of all lanes where the lower ones were.
constexpr int kUpperHalves = 0x31;
/// Neighbouring lanes in each other's place.
constexpr int kSwapLanes = 0x4E;

TARGET_AVX2 ALWAYS_INLINE __m256i load_avx2(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

TARGET_AVX2 ALWAYS_INLINE __m256i step_avx2(__m256i lanes, __m256i data, __m256i secret) {
  const __m256i keyed = _mm256_xor_si256(data, secret);
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_shuffle_epi32(keyed, kUpperHalves));
  return _mm256_add_epi64(_mm256_add_epi64(lanes, _mm256_shuffle_epi32(data, kSwapLanes)), product);
}

TARGET_AVX2 ALWAYS_INLINE __m256i scrambled_avx2(__m256i lanes, __m256i secret) {
  const __m256i factor = _mm256_set1_epi64x(static_cast<long long>(kScrambleFactor));
  const __m256i keyed = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)), secret);
  const __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), factor);
  return _mm256_add_epi64(_mm256_mul_epu32(keyed, factor), _mm256_slli_epi64(upper, 32));
}

TARGET_AVX2 ALWAYS_INLINE void stripes_avx2(__m256i& low, __m256i& high, const std::byte* data, i64 stripes,
                                            const std::byte* secret) {
  for (i64 s = 0; s < stripes; ++s) {
    const std::byte* const from = data + s * kStripeBytes;
    const std::byte* const key = secret + s * kSecretStep;
    low = step_avx2(low, load_avx2(from), load_avx2(key));
    high = step_avx2(high, load_avx2(from + 32), load_avx2(key + 32));
  }
}

TARGET_AVX2 ALWAYS_INLINE void store_avx2(u64* lanes, __m256i low, __m256i high) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 4), high);
}

TARGET_AVX2 void add_stripes_avx2(u64* lanes, const std::byte* data, i64 stripes, const std::byte* secret) {
  __m256i low = load_avx2(lanes), high = load_avx2(lanes + 4);
  stripes_avx2(low, high, data, stripes, secret);
  store_avx2(lanes, low, high);
}

TARGET_AVX2 void add_blocks_avx2(u64* lanes, const std::byte* data, i64 blocks, const std::byte* secret) {
  __m256i low = load_avx2(lanes), high = load_avx2(lanes + 4);
  for (i64 b = 0; b < blocks; ++b) {
    stripes_avx2(low, high, data + b * kHashBlockBytes, kStripesPerBlock, secret);
    low = scrambled_avx2(low, load_avx2(secret + kScrambleAt));
    high = scrambled_avx2(high, load_avx2(secret + kScrambleAt + 32));
  }
  store_avx2(lanes, low, high);
}

TARGET_AVX2 void sum_blocks_avx2(u64* sums, const std::byte* data, i64 blocks, const std::byte* secret) {
  for (i64 b = 0; b < blocks; ++b) {
    __m256i low = _mm256_setzero_si256(), high = low;
    stripes_avx2(low, high, data + b * kHashBlockBytes, kStripesPerBlock, secret);
    store_avx2(sums + 8 * b, low, high);
  }
}

typedef u64 Lanes512 __attribute__((vector_size(64)));

/// Of the lower halves. Not _mm512_mul_epu32: gcc 12 warns of what that leaves undefined, and then does not use.
TARGET_AVX512 ALWAYS_INLINE Lanes512 product_avx512(Lanes512 a, Lanes512 b) {
  return (Lanes512)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
}

TARGET_AVX512 ALWAYS_INLINE Lanes512 load_avx512(const void* from) { return (Lanes512)_mm512_loadu_si512(from); }

TARGET_AVX512 ALWAYS_INLINE Lanes512 step_avx512(Lanes512 lanes, Lanes512 data, Lanes512 secret) {
  const Lanes512 keyed = data ^ secret;
  const Lanes512 swapped = __builtin_shufflevector(data, data, 1, 0, 3, 2, 5, 4, 7, 6);
  return lanes + swapped + product_avx512(keyed, keyed >> 32);
}

TARGET_AVX512 ALWAYS_INLINE Lanes512 scrambled_avx512(Lanes512 lanes, Lanes512 secret) {
  const Lanes512 factor = {kScrambleFactor, kScrambleFactor, kScrambleFactor, kScrambleFactor,
                           kScrambleFactor, kScrambleFactor, kScrambleFactor, kScrambleFactor};
  const Lanes512 keyed = lanes ^ lanes >> 47 ^ secret;
  return product_avx512(keyed, factor) + (product_avx512(keyed >> 32, factor) << 32);
}

TARGET_AVX512 ALWAYS_INLINE Lanes512 stripes_avx512(Lanes512 lanes, const std::byte* data, i64 stripes,
                                                    const std::byte* secret) {
  for (i64 s = 0; s < stripes; ++s)
    lanes = step_avx512(lanes, load_avx512(data + s * kStripeBytes), load_avx512(secret + s * kSecretStep));
  return lanes;
}

TARGET_AVX512 void add_stripes_avx512(u64* lanes, const std::byte* data, i64 stripes, const std::byte* secret) {
  _mm512_storeu_si512(lanes, (__m512i)stripes_avx512(load_avx512(lanes), data, stripes, secret));
}

TARGET_AVX512 void add_blocks_avx512(u64* lanes, const std::byte* data, i64 blocks, const std::byte* secret) {
  Lanes512 all = load_avx512(lanes);
  for (i64 b = 0; b < blocks; ++b) {
    all = stripes_avx512(all, data + b * kHashBlockBytes, kStripesPerBlock, secret);
    all = scrambled_avx512(all, load_avx512(secret + kScrambleAt));
  }
  _mm512_storeu_si512(lanes, (__m512i)all);
}

TARGET_AVX512 void sum_blocks_avx512(u64* sums, const std::byte* data, i64 blocks, const std::byte* secret) {
  for (i64 b = 0; b < blocks; ++b) {
    const std::byte* const block = data + b * kHashBlockBytes;
    _mm512_storeu_si512(sums + 8 * b, (__m512i)stripes_avx512(Lanes512{}, block, kStripesPerBlock, secret));
  }
}
#endif

std::vector<HashPath> find_paths() {
  std::vector<HashPath> paths;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) paths.push_back(HashPath::Avx512);
  if (__builtin_cpu_supports("avx2")) paths.push_back(HashPath::Avx2);
#endif
  paths.push_back(HashPath::Plain);
  return paths;
}

}  // namespace

std::span<const HashPath> hash_paths() {
  static const std::vector<HashPath> paths = find_paths();
  return paths;
}

const HashKernels& hash_kernels(HashPath path) {
  static constexpr HashKernels kPlain{add_stripes_plain, add_blocks_plain, sum_blocks_plain};
#if defined(__x86_64__)
  static constexpr HashKernels kAvx2{add_stripes_avx2, add_blocks_avx2, sum_blocks_avx2};
  static constexpr HashKernels kAvx512{add_stripes_avx512, add_blocks_avx512, sum_blocks_avx512};
  if (path == HashPath::Avx512) return kAvx512;
  if (path == HashPath::Avx2) return kAvx2;
#endif
  (void)path;
  return kPlain;
}

void scramble(HashLanes& lanes, const std::byte* secret) { scramble_plain(lanes.data(), secret); }

}  // namespace glu_ckpt
