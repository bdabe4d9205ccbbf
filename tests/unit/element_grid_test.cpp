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

/// Scales of gate and of up behind each other, where F is no multiple of the rows.
ElementGrid restarting_blocks() {
  ElementGrid grid = fp8_blocks(128);
  grid.restarts = true;
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

/// Of 640 rows as one matrix there are 5, and of 320 and 320 behind each other 6.
TEST(ElementGrid, BlocksThatBeginAnewWithUp) {
  StoredWeight fc1{TensorKind::Weight, Dtype::F8_E4M3, {640, 256}};
  EXPECT_EQ(grid_of(TensorKind::Scale, Dtype::F32, {6, 2}, fc1), std::nullopt);
  fc1.parts = 2;
  const auto one = grid_of(TensorKind::Scale, Dtype::F32, {5, 2}, fc1),
             two = grid_of(TensorKind::Scale, Dtype::F32, {6, 2}, fc1);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(*one, fp8_blocks(128));
  EXPECT_EQ(*two, restarting_blocks());
  EXPECT_EQ(grid_of(TensorKind::Scale, Dtype::F32, {7, 2}, fc1), std::nullopt);
  // Where 128 divides F, both are the same.
  fc1.extents.rows = 512;
  EXPECT_EQ(grid_of(TensorKind::Scale, Dtype::F32, {4, 2}, fc1), fp8_blocks(128));
  const Glu contiguous{Glu::Kind::Contiguous, 0}, interleaved{Glu::Kind::Interleaved, 32};
  EXPECT_TRUE(shares_blocks(contiguous, 320, *one));
  EXPECT_FALSE(shares_blocks(contiguous, 256, *one));
  EXPECT_FALSE(shares_blocks(contiguous, 320, *two));
  EXPECT_TRUE(shares_blocks(interleaved, 256, *one));
  EXPECT_FALSE(shares_blocks({Glu::Kind::Split, 0}, 320, *one));
}

/// The rows that blocks must have on the way from one order of FC1 to another.
TEST(ElementGrid, BlocksThatAnOrderWouldCut) {
  const Glu split{Glu::Kind::Split, 0}, contiguous{Glu::Kind::Contiguous, 0};
  const auto rows = [](const Glu& from, const Glu& to, const ElementGrid& grid, i64 intermediate) {
    ExpertBlock block;
    block.glu = from;
    block.intermediate_size = intermediate;
    Matrix matrix;
    matrix.role = from.kind == Glu::Kind::Split ? Role::Gate : Role::GateUp;
    matrix.kind = TensorKind::Scale;
    matrix.grid = grid;
    block.matrices = {matrix};
    return finer_scale_rows({block}, to, std::nullopt);
  };
  const ElementGrid one = fp8_blocks(128), two = restarting_blocks();
  EXPECT_EQ(rows(contiguous, split, one, 320), 64);
  EXPECT_EQ(rows(contiguous, split, two, 320), 0);
  EXPECT_EQ(rows(contiguous, split, one, 256), 0);
  EXPECT_EQ(rows(contiguous, {Glu::Kind::Interleaved, 32}, one, 320), 32);
  EXPECT_EQ(rows(contiguous, {Glu::Kind::Interleaved, 160}, two, 320), 32);
  EXPECT_EQ(rows({Glu::Kind::Interleaved, 32}, split, one, 256), 32);
  EXPECT_EQ(rows({Glu::Kind::Interleaved, 96}, contiguous, one, 192), 32);
  EXPECT_EQ(rows(split, contiguous, one, 320), 64);
  EXPECT_EQ(rows(split, contiguous, one, 384), 0);
  EXPECT_EQ(rows(contiguous, contiguous, one, 320), 0);
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
