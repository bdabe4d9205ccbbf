/// XXH3 compiled for one length of vector registers, which meson.build gives with the compiler's options and with
/// GLU_CKPT_LEVEL, a suffix. All of it is inline and from this one header, so nothing that was compiled for these
/// registers can take the place of another file's function.

#define XXH_INLINE_ALL
#include <xxhash.h>

#define GLU_CKPT_PASTE(name, suffix) name##suffix
#define GLU_CKPT_NAME(name, suffix) GLU_CKPT_PASTE(name, suffix)

namespace {

/// Cleans the upper halves of the registers, which gcc 12 leaves to whoever calls XXH3. As long as they are not clean,
/// each SSE instruction waits for the one before it: on an Intel Xeon a row of 4 KiB took 490 ns instead of 190.
template <typename Result>
Result with_clean_registers(const Result& result) {
  __builtin_ia32_vzeroupper();
  return result;
}

}  // namespace

// Their types have other names in C++ where everything is inline; in C that is no part of the function's name.
extern "C" {

XXH64_hash_t GLU_CKPT_NAME(xxh3_64_, GLU_CKPT_LEVEL)(const void* bytes, size_t count) {
  return with_clean_registers(XXH3_64bits(bytes, count));
}

XXH128_hash_t GLU_CKPT_NAME(xxh3_128_, GLU_CKPT_LEVEL)(const void* bytes, size_t count, XXH64_hash_t seed) {
  return with_clean_registers(XXH3_128bits_withSeed(bytes, count, seed));
}

XXH_errorcode GLU_CKPT_NAME(xxh3_update_, GLU_CKPT_LEVEL)(XXH3_state_t* state, const void* bytes, size_t count) {
  return with_clean_registers(XXH3_128bits_update(state, bytes, count));
}

}  // extern "C"
