/// The functions of xxh_x86dispatch.h, for programs without shared libraries: libxxhash.so has them, and Debian's
/// libxxhash.a does not. Without them XXH3 takes two to four times as long.

#include <xxhash.h>

#include "core/simd.hpp"

#define GLU_CKPT_LEVELS(level)                                       \
  XXH64_hash_t xxh3_64_##level(const void* bytes, size_t count);     \
  XXH128_hash_t xxh3_128_##level(const void*, size_t, XXH64_hash_t); \
  XXH_errorcode xxh3_update_##level(XXH3_state_t*, const void*, size_t)

extern "C" {

GLU_CKPT_LEVELS(avx512);
GLU_CKPT_LEVELS(avx2);

XXH64_hash_t XXH3_64bits_dispatch(const void* bytes, size_t count) {
  static auto* const function = glu_ckpt::fastest(xxh3_64_avx512, xxh3_64_avx2, XXH3_64bits);
  return function(bytes, count);
}

XXH128_hash_t XXH3_128bits_withSeed_dispatch(const void* bytes, size_t count, XXH64_hash_t seed) {
  static auto* const function = glu_ckpt::fastest(xxh3_128_avx512, xxh3_128_avx2, XXH3_128bits_withSeed);
  return function(bytes, count, seed);
}

XXH_errorcode XXH3_128bits_update_dispatch(XXH3_state_t* state, const void* bytes, size_t count) {
  static auto* const function = glu_ckpt::fastest(xxh3_update_avx512, xxh3_update_avx2, XXH3_128bits_update);
  return function(state, bytes, count);
}

}  // extern "C"
