#include "core/crc32.hpp"

#include <libdeflate.h>
#include <zlib.h>

namespace glu_ckpt {

u32 crc32_of(std::span<const std::byte> bytes, u32 crc_before) {
  // libdeflate answers a null pointer with the initial value, whatever came before.
  if (bytes.empty()) return crc_before;
  return libdeflate_crc32(crc_before, bytes.data(), bytes.size());
}

// libdeflate, ten times as fast per byte, has no function that joins two values.
u32 crc32_join(u32 crc_a, u32 crc_b, i64 bytes_b) {
  static_assert(sizeof(z_off_t) == sizeof(i64));
  return static_cast<u32>(crc32_combine(crc_a, crc_b, bytes_b));
}

}  // namespace glu_ckpt
