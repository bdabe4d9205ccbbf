/// Tiles of weight gradients are each made once, in the order that their description promises.

#include "kernels/mlp/grad_tiles.hpp"

#include <gtest/gtest.h>

namespace glu_ckpt {
namespace {

TEST(GradTiles, LieAsThoseOfOneMatrixThatHasTheRowsOfAll) {
  for (const i32 experts : {1, 3, 150})
    for (const i32 matrices : {1, 2})
      for (const i32 tiles_m : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 28})
        for (const i32 tiles_n : {1, 2, 3, 4, 11, 38}) {
          const GradTiles tiles(experts, matrices, tiles_m, tiles_n);
          const i32 each = matrices * tiles_m * tiles_n;
          ASSERT_EQ(tiles.count(), static_cast<u32>(experts * each));
          for (i32 tile = 0; tile < experts * each; ++tile) {
            const GradPlace place = tiles.at(static_cast<u32>(tile));
            ASSERT_EQ(tiles.expert(static_cast<u32>(tile)), place.expert);
            ASSERT_LT(place.m, static_cast<u32>(tiles_m));
            const TilePlace expected = place_in_expert(tile / each, tile % each, matrices * tiles_m, tiles_n);
            const TilePlace found{static_cast<i32>(place.expert),
                                  static_cast<i32>(place.matrix) * tiles_m + static_cast<i32>(place.m),
                                  static_cast<i32>(place.n)};
            ASSERT_EQ(found, expected) << "tile " << tile << " of " << experts << " experts, " << matrices
                                       << " matrices of " << tiles_m << " x " << tiles_n << " tiles";
          }
        }
}

/// Where an expert's tiles end is where most can go wrong, and counts near 2^31 are where a quotient would.
TEST(GradTiles, TheLastOfManyIsTheLast) {
  const GradTiles tiles(65535, 2, 112, 146);
  const u32 last = tiles.count() - 1;
  EXPECT_EQ(last, 65535U * 2 * 112 * 146 - 1);
  EXPECT_EQ(tiles.at(last), (GradPlace{65534, 1, 111, 145}));
  EXPECT_EQ(tiles.at(last - 2 * 112 * 146), (GradPlace{65533, 1, 111, 145}));
  EXPECT_EQ(tiles.at(last + 1 - 2 * 112 * 146), (GradPlace{65534, 0, 0, 0}));
}

}  // namespace
}  // namespace glu_ckpt
