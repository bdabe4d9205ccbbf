/// Neighbours of codes: every code beside the table that is made from the formats' definitions.

#include "quant/nudged_codes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "quant/decode_row.hpp"

namespace glu_ckpt {
namespace {

/// The number that one code stands for, of what stands in the lower bits of a byte.
float value_of(Codes codes, std::byte code) {
  const float scales[2] = {1.0F, 1.0F};
  float values[2] = {};
  const i64 count = code_bytes(codes, 2) == 1 ? 2 : 1;
  decode_row_by_table({codes, &code, count, scales, false}, Dtype::F32, reinterpret_cast<std::byte*>(values));
  return values[0];
}

TEST(NudgeCodes, GivesTheNextNumberOfEachFormat) {
  for (const Codes codes : {Codes::E4m3, Codes::E5m2, Codes::E2m1, Codes::Int8, Codes::Int4}) {
    const unsigned count = code_bytes(codes, 2) == 1 ? 16 : 256;
    std::set<float> numbers;
    for (unsigned code = 0; code < count; ++code)
      if (const float value = value_of(codes, static_cast<std::byte>(code)); std::isfinite(value))
        numbers.insert(value);
    for (unsigned code = 0; code < count; ++code) {
      const float value = value_of(codes, static_cast<std::byte>(code));
      for (const Nudge nudge : {Nudge::None, Nudge::Down, Nudge::Up}) {
        std::byte nudged = static_cast<std::byte>(code);
        nudge_codes(codes, nudge, {&nudged, 1});
        const float found = value_of(codes, nudged);
        if (!std::isfinite(value)) {
          EXPECT_EQ(nudged, static_cast<std::byte>(code));
          continue;
        }
        const auto at = numbers.find(value);
        float right = value;
        if (nudge == Nudge::Down && at != numbers.begin()) right = *std::prev(at);
        if (nudge == Nudge::Up && std::next(at) != numbers.end()) right = *std::next(at);
        EXPECT_EQ(found, right) << "code " << code << " of format " << static_cast<int>(codes);
      }
    }
  }
}

TEST(NudgeCodes, NudgesBothCodesOfAByte) {
  std::byte bytes[] = {std::byte{0x7F}, std::byte{0x80}, std::byte{0x0E}};
  nudge_codes(Codes::Awq, Nudge::Up, bytes);
  EXPECT_EQ(bytes[0], std::byte{0x8F});
  EXPECT_EQ(bytes[1], std::byte{0x91});
  EXPECT_EQ(bytes[2], std::byte{0x1F});
  nudge_codes(Codes::Gptq, Nudge::Down, bytes);
  EXPECT_EQ(bytes[2], std::byte{0x0E});
}

}  // namespace
}  // namespace glu_ckpt
