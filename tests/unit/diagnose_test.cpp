#include "verify/diagnose.hpp"

#include <gtest/gtest.h>

#include "support/mlp_cases.hpp"

namespace glu_ckpt {
namespace {

using namespace support;

std::vector<std::byte> run(const ExpertWeights& expert, const MlpShape& shape, const std::vector<std::byte>& x) {
  const std::vector<float> probs{0.5F, 0.75F};
  const std::vector<i64> splits{2};
  std::vector<std::byte> out(x.size());
  grouped_mlp_host({shape.hidden, shape.dtype, shape.activation, {&expert, 1}}, x.data(), 2, splits, probs.data(),
                   out.data(), 1);
  return out;
}

/// Reads of other bytes than the expert's would be seen by the address sanitizer.
void expect_wrong(const MlpShape& shape, const Fc1Order& order, std::size_t layouts) {
  std::mt19937 random(5);
  const StoredExperts stored(shape, random_experts(shape, random), order);
  const auto x =
      to_bytes(random_values(static_cast<std::size_t>(2 * shape.hidden), 1, shape.dtype, random), shape.dtype);
  const auto right = run(stored.experts()[0], shape, x);
  const auto wrong = wrong_layouts(stored.experts()[0]);
  EXPECT_EQ(wrong.size(), layouts) << order.name;
  for (const ExpertWeights& expert : wrong) EXPECT_NE(run(expert, shape, x), right) << order.name;
}

TEST(WrongLayout, ChangesWhatEveryLayoutComputes) {
  for (const i64 width : {2, 3, 6, 8, 64})
    for (const bool bias : {false, true})
      for (const Fc1Order& order : fc1_orders(width)) {
        const bool fused = order.block_rows > 0 && !order.halved;
        expect_wrong({8, {width}, Dtype::F32, {}, bias}, order, fused ? 2 : 1);
      }
}

/// Of one row of gate and up there is but one order, so they are exchanged.
TEST(WrongLayout, OfOneRow) {
  for (const Fc1Order& order : fc1_orders(1)) expect_wrong({8, {1}, Dtype::F32, {}, true}, order, 1);
}

TEST(WrongLayout, WithoutAGate) {
  const Activation squared{ActivationKind::SquaredRelu};
  for (const bool transposed : {false, true})
    for (const bool bias : {false, true}) {
      expect_wrong({8, {6}, Dtype::F32, squared, bias}, {"plain", 0, transposed, false}, 1);
      expect_wrong({8, {1}, Dtype::F32, {ActivationKind::SquaredRelu}, true}, {"one row", 0, transposed, false}, 1);
    }
}

TEST(WrongLayout, TakesAContiguousOneForTheUsualInterleaving) {
  std::mt19937 random(6);
  const MlpShape shape{8, {96}, Dtype::BF16, {}, false};
  const StoredExperts stored(shape, random_experts(shape, random), {"contiguous", 96, false, false});
  const Placement place = wrong_layouts(stored.experts()[0])[0].up.first.place;
  EXPECT_EQ(place.block_rows, 32);
  EXPECT_EQ(place.offset, 32 * 8 * 2);
  EXPECT_EQ(place.block_step, 64 * 8 * 2);
}

}  // namespace
}  // namespace glu_ckpt
