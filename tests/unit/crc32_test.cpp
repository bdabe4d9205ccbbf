#include "core/crc32.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace glu_ckpt {
namespace {

u32 crc_of(std::string_view text, u32 before = 0) { return crc32_of(std::as_bytes(std::span(text)), before); }

TEST(Crc32, KnownValues) {
  EXPECT_EQ(crc_of(""), 0u);
  EXPECT_EQ(crc_of("123456789"), 0xCBF43926u);  // the check value of the CRC catalogue
  EXPECT_EQ(crc_of("1"), 0x83DCEFB7u);          // .format_version
}

TEST(Crc32, GoesOnFromACrc) {
  const std::string text = "The first half, and the second.";
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc_of(text.substr(cut), crc_of(text.substr(0, cut))), crc_of(text)) << cut;
  EXPECT_EQ(crc32_of({}, 0x12345678u), 0x12345678u);
}

TEST(Crc32, JoinsPieces) {
  const std::string text = "The first half, and the second.";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string second = text.substr(cut);
    EXPECT_EQ(crc32_join(crc_of(text.substr(0, cut)), crc_of(second), std::ssize(second)), crc_of(text)) << cut;
  }
}

/// 5 GiB of zeros, by doubling: lengths of more than 32 bits count.
TEST(Crc32, JoinsLongPieces) {
  const std::string block(1 << 20, '\0');
  u32 crc = crc_of(block);
  u32 one_gib_crc = 0;
  for (i64 bytes = std::ssize(block); bytes < i64{4} << 30; bytes *= 2) {
    if (bytes == i64{1} << 30) one_gib_crc = crc;
    crc = crc32_join(crc, crc, bytes);
  }
  EXPECT_EQ(crc32_join(crc, one_gib_crc, i64{1} << 30), 0x193838C3u);
  EXPECT_EQ(crc32_join(one_gib_crc, crc, i64{4} << 30), 0x193838C3u);
}

}  // namespace
}  // namespace glu_ckpt
