#include "core/byte_fields.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "glu_ckpt/error.hpp"

namespace glu_ckpt {
namespace {

using namespace std::string_literals;

constexpr i64 kLeast = std::numeric_limits<i64>::min();

std::vector<std::byte> sample() {
  ByteWriter out;
  out.number(kLeast);
  out.text("a\0b"s);
  out.text("");
  out.number(3);
  return out.take();
}

TEST(ByteFields, ReadsWhatWasWritten) {
  const auto bytes = sample();
  ByteReader in(bytes, "it");
  EXPECT_EQ(in.number(), kLeast);
  EXPECT_EQ(in.text(), "a\0b"s);
  EXPECT_EQ(in.text(), "");
  EXPECT_EQ(in.number(3, 3), 3);
  in.end();
}

TEST(ByteFields, RefusesEveryTruncation) {
  const auto bytes = sample();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ByteReader in({bytes.data(), length}, "it");
    EXPECT_THROW(
        {
          in.number();
          in.text();
          in.text();
          in.number();
        },
        Error)
        << length;
  }
}

TEST(ByteFields, RefusesWhatIsTooLong) {
  const auto bytes = sample();
  ByteReader in(bytes, "it");
  in.number();
  EXPECT_THROW(in.end(), Error);
}

TEST(ByteFields, RefusesCountsThatDoNotFit) {
  for (const i64 count : {i64{-1}, i64{2}, std::numeric_limits<i64>::max(), kLeast}) {
    ByteWriter out;
    out.number(count);
    out.number(0);
    const auto bytes = out.take();
    EXPECT_THROW(ByteReader(bytes, "it").count(8), Error) << count;
    EXPECT_THROW(ByteReader(bytes, "it").number(0, 1), Error) << count;
  }
}

}  // namespace
}  // namespace glu_ckpt
