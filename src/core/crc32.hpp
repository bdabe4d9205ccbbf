#pragma once
/// CRC-32 as zip has it (zlib's).

#include <cstddef>
#include <span>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

u32 crc32_of(std::span<const std::byte> bytes, u32 crc_before = 0);
/// Returns the CRC of A followed by B, from the two and B's length.
u32 crc32_join(u32 crc_a, u32 crc_b, i64 bytes_b);

}  // namespace glu_ckpt
