/// Computed tensors: rounded once, to nearest even, and undone where nothing is lost.

#include "core/compute.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "core/float_rows.hpp"

namespace glu_ckpt {
namespace {

template <typename Bits>
std::vector<std::byte> bytes_of(const std::vector<Bits>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Bits));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(Compute, SubtractsInF32) {
  // 1, 1.0078125, 0.5, 0, -2, as BF16.
  const auto stored = bytes_of<std::uint16_t>({0x3f80, 0x3f81, 0x3f00, 0x0000, 0xc000});
  std::vector<std::byte> made(5 * sizeof(float));
  compute(ComputeOp::SubtractOne, Dtype::BF16, stored, Dtype::F32, made);
  EXPECT_EQ(made, bytes_of<float>({0.0F, 0.0078125F, -0.5F, -1.0F, -3.0F}));
}

/// All weights that a norm can have in BF16 come back, but for those too small to be seen beside 1.
TEST(Compute, Bf16ComesBackFromF32) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const auto value = std::bit_cast<float>(bits << 16);
    const auto stored = bytes_of<std::uint16_t>({static_cast<std::uint16_t>(bits)});
    const bool back = first_lost(ComputeOp::SubtractOne, Dtype::BF16, stored, Dtype::F32) < 0;
    const float sum = (value - 1.0F) + 1.0F;
    EXPECT_EQ(back, round_to_bf16(std::bit_cast<std::uint32_t>(sum)) == bits) << value;
    if (value > 1e-5F && value < 1e6F) {
      EXPECT_TRUE(back) << value;
    }
  }
}

TEST(Compute, TheFirstLostElementIsNamed) {
  const auto stored = bytes_of<float>({1.0F, 2.0F, 1e-30F, 1e-31F});
  EXPECT_EQ(first_lost(ComputeOp::SubtractOne, Dtype::F32, stored, Dtype::F32), 2);
  EXPECT_EQ(first_lost(ComputeOp::AddOne, Dtype::F32, std::span(stored).first(8), Dtype::F32), -1);
  EXPECT_EQ(inverse(ComputeOp::AddOne), ComputeOp::SubtractOne);
  EXPECT_EQ(inverse(inverse(ComputeOp::AddOne)), ComputeOp::AddOne);
}

}  // namespace
}  // namespace glu_ckpt
