#include "core/readable.hpp"

#include <gtest/gtest.h>

#include <string>

namespace glu_ckpt {
namespace {

/// The bytes of a code point, in `bytes` of them, however few it needs.
std::string encoded(unsigned code, int bytes) {
  if (bytes == 1) return std::string(1, static_cast<char>(code));
  std::string text(static_cast<std::size_t>(bytes), '\0');
  for (int i = bytes - 1; i > 0; --i, code >>= 6)
    text[static_cast<std::size_t>(i)] = static_cast<char>(0x80 | (code & 0x3f));
  text[0] = static_cast<char>((0xf00 >> bytes & 0xff) | code);
  return text;
}

TEST(Utf8, EveryCodePointHasOneSpelling) {
  for (unsigned code = 0; code < 0x120000; ++code) {
    const int least = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    for (int bytes = least; bytes <= 4; ++bytes) {
      const std::string text = encoded(code, bytes);
      const bool valid = bytes == least && code < 0x110000;
      ASSERT_EQ(utf8_character(text + "x"), valid && !surrogate ? text.size() : 0) << code << " in " << bytes;
      ASSERT_EQ(is_utf8(text, Surrogates::Pass), valid) << code << " in " << bytes;
      ASSERT_EQ(utf8_character(text.substr(0, text.size() - 1)), 0u) << code;
    }
  }
}

TEST(Utf8, PrefixEndsWhereACharacterIsCut) {
  const std::string euro = "\xe2\x82\xac";
  for (std::size_t before = 0; before < 20; ++before) {
    const std::string text = std::string(before, 'a') + euro;
    EXPECT_EQ(utf8_prefix(text), text.size());
    EXPECT_EQ(utf8_prefix(text + "\x80" + text), text.size());
    EXPECT_EQ(utf8_prefix(text.substr(0, text.size() - 1)), before);
    EXPECT_EQ(utf8_prefix(text.substr(0, before) + "\xff" + text), before);
  }
  EXPECT_TRUE(is_utf8(""));
}

}  // namespace
}  // namespace glu_ckpt
