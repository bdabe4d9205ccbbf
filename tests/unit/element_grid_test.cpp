#include "layout/element_grid.hpp"

#include <gtest/gtest.h>

#include "layout/tensor_kinds.hpp"

namespace glu_ckpt {
namespace {

using Shape = std::vector<i64>;

/// The grid of a shape, and that the grid gives the shape back.
std::optional<ElementGrid> grid_of(TensorKind kind, Dtype dtype, const Shape& shape, const StoredWeight& weight) {
  const auto grid = find_grid(kind, dtype, shape, weight);
  if (grid) {
    EXPECT_EQ(stored_shape(kind, *grid, stored_extents(*grid, weight.extents, weight.parts), weight.parts, weight.axes),
              shape);
  }
  return grid;
}

TEST(ElementGrid, ScalesOfFp8AreToldApartByTheirAxes) {
  const StoredWeight weight{TensorKind::Weight, Dtype::F8_E4M3, {300, 260}};
  const auto of = [&](const Shape& shape) { return grid_of(TensorKind::PlainScale, Dtype::F32, shape, weight); };
  EXPECT_EQ(of({3, 3}), (ElementGrid{128, 128}));
  EXPECT_EQ(of({3, 1, 3, 1}), (ElementGrid{128, 128, 1, 1, 1, true, true}));
  EXPECT_EQ(of({300, 1}), (ElementGrid{1, 0}));
  EXPECT_EQ(of({300}), (ElementGrid{1, 0, 1, 1, 1, false}));
  EXPECT_EQ(of({1}), (ElementGrid{0, 0}));
  EXPECT_EQ(of({}), (ElementGrid{0, 0, 1, 1, 1, false}));
  for (const Shape& other : {Shape{3, 1, 1, 3}, Shape{1, 3, 1, 3}, Shape{3, 3, 1}, Shape{2, 1, 3, 1}, Shape{3}})
    EXPECT_EQ(of(other), std::nullopt);
}

/// compressed-tensors' stand one behind the other, GPTQ's beside each other.
TEST(ElementGrid, AFusedFc1HasGroupsOfColumnsForEachOfItsTwo) {
  const StoredWeight one{TensorKind::PackedWeight, Dtype::I32, {96, 64}};
  StoredWeight two = one;
  two.parts = 2;
  EXPECT_EQ(grid_of(TensorKind::PackedGroupIndex, Dtype::I32, {64}, one), (ElementGrid{0, 1}));
  EXPECT_EQ(grid_of(TensorKind::PackedGroupIndex, Dtype::I32, {96}, one), std::nullopt);
  EXPECT_EQ(grid_of(TensorKind::PackedGroupIndex, Dtype::I64, {64}, one), std::nullopt);
  EXPECT_EQ(grid_of(TensorKind::PackedGroupIndex, Dtype::I32, {2, 64}, two), (ElementGrid{0, 1}));
  EXPECT_EQ(grid_of(TensorKind::PackedGroupIndex, Dtype::I32, {64, 2}, two), std::nullopt);
}

/// DeepSeek-V4's I8 is a byte of two codes beside powers of two, and INT8 beside anything else.
TEST(ElementGrid, ScalesOfBytesOfTwoCodes) {
  const StoredWeight weight{TensorKind::Weight, Dtype::I8, {96, 64}};
  EXPECT_EQ(grid_of(TensorKind::Scale, Dtype::F8_E8M0, {96, 2}, weight), (ElementGrid{1, 32}));
  EXPECT_EQ(grid_of(TensorKind::Scale, Dtype::F8_E8M0, {1, 1}, weight), std::nullopt);
}

}  // namespace
}  // namespace glu_ckpt
