/// What the warps of FC1 count of an expert is what FC2 waits for: no column is counted twice or by none.

#include "kernels/mlp/layer_tiles.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace glu_ckpt {
namespace {

constexpr LayerKind kFirstLayers[] = {LayerKind::Gated, LayerKind::Ungated};
constexpr int kGroups = 2;

int tiles_n(LayerKind kind, int half_rows, int cols) {
  return (cols + tile_cols(kind, half_rows) - 1) / tile_cols(kind, half_rows);
}

TEST(LayerTiles, FewRowsCountWhatTheNextLayerWaitsFor) {
  for (const LayerKind kind : kFirstLayers)
    for (const int rows : {16, 32, 64, 128})
      for (int cols = 1; cols <= 1100; ++cols) {
        u64 counted = 0;
        for (int n = 0; n < tiles_n(kind, kHalfRows, cols); ++n)
          for (int group = 0; group < kGroups; ++group)
            for (int warp = 0; warp < kGroupWarps; ++warp)
              counted += static_cast<u64>(warp_squares(rows / kStoreRows, warp) * group_cols(kind, cols, n, group));
        ASSERT_EQ(counted, all_written(1, rows, cols)) << rows << " rows, " << cols << " columns";
      }
}

TEST(LayerTiles, ManyRowsCountWhatTheNextLayerWaitsFor) {
  // Two blocks of four warps, whose 16 rows are in both halves of a block's 128.
  constexpr int kWarps = 2 * kGroupWarps, kParts = 2, kRows = kWarps * kParts * kStoreRows;
  for (const LayerKind kind : kFirstLayers)
    for (int cols = 1; cols <= 1100; ++cols) {
      const int wide = tile_cols(kind, kTurnHalfRows);
      u64 counted = 0;
      for (int n = 0; n < tiles_n(kind, kTurnHalfRows, cols); ++n)
        counted += static_cast<u64>(kWarps * kParts * cols_within(n * wide, wide, cols));
      ASSERT_EQ(counted, all_written(1, kRows, cols)) << cols << " columns";
    }
}

TEST(LayerTiles, EachSquareIsOneWarps) {
  for (const int squares : {1, 2, 4, 8}) {
    std::vector<int> owners(static_cast<std::size_t>(squares));
    for (int warp = 0; warp < kGroupWarps; ++warp) {
      int own = 0;
      for (int square = warp; square < squares; square += kGroupWarps)
        ++own, ++owners[static_cast<std::size_t>(square)];
      EXPECT_EQ(own, warp_squares(squares, warp));
    }
    EXPECT_EQ(owners, std::vector<int>(static_cast<std::size_t>(squares), 1));
  }
}

TEST(LayerTiles, HalvesOfAllTilesFollowOneAnother) {
  // Gate's and up's rows of a tile are the same; without a gate both halves are neighbours.
  EXPECT_EQ(half_row(LayerKind::Gated, 96, 3, 0), 288);
  EXPECT_EQ(half_row(LayerKind::Gated, 96, 3, 1), 288);
  EXPECT_EQ(half_row(LayerKind::Ungated, 96, 3, 0), 576);
  EXPECT_EQ(half_row(LayerKind::Linear, 96, 3, 1), 672);
}

TEST(LayerTiles, ManyTilesOfManyColumnsDoNotOverflow) { EXPECT_EQ(all_written(1 << 23, 256, 1 << 30), u64{1} << 57); }

}  // namespace
}  // namespace glu_ckpt
