#include "core/crc32.hpp"

#include <zlib.h>

namespace glu_ckpt {

u32 crc32_of(std::span<const std::byte> bytes, u32 crc_before) {
  // zlib answers a null pointer with the initial value, whatever came before.
  if (bytes.empty()) return crc_before;
  return static_cast<u32>(crc32_z(crc_before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

u32 crc32_join(u32 crc_a, u32 crc_b, i64 bytes_b) {
  static_assert(sizeof(z_off_t) == sizeof(i64));
  return static_cast<u32>(crc32_combine(crc_a, crc_b, bytes_b));
}

}  // namespace glu_ckpt
