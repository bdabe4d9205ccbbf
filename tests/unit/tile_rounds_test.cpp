/// Clusters make each tile once, and share the narrow ones.

#include "kernels/mlp/tile_rounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace glu_ckpt {
namespace {

TEST(TileRounds, MakeEachTileOnce) {
  for (const u32 clusters : {1U, 2U, 3U, 5U, 33U, 57U, 64U, 66U, 72U, 74U})
    for (const u32 count : {0U, 1U, 2U, 65U, 66U, 67U, 1000U, 4444U}) {
      std::vector<int> made(count);
      for (u32 cluster = 0; cluster < clusters; ++cluster) {
        i64 before = -1;
        for (TileRounds rounds(cluster, clusters); rounds.tile() < count; rounds.next()) {
          ASSERT_LT(before, rounds.tile()) << "schedulers want growing numbers";
          before = rounds.tile();
          ++made[static_cast<std::size_t>(rounds.tile())];
        }
      }
      EXPECT_EQ(std::ranges::count(made, 1), count) << clusters << " clusters, " << count << " tiles";
    }
}

/// The tiles of a product: `heights` rows of tiles for each of many experts, whose last column takes `narrow` of the
/// time of the others.
struct Product {
  int heights, cols;
  double narrow;
};

double tile_time(const Product& product, i64 tile) {
  const i64 in_expert = tile % (product.heights * product.cols);
  return in_expert / product.heights == product.cols - 1 ? product.narrow : 1;
}

TEST(TileRounds, ShareTheNarrowTiles) {
  constexpr int kExperts = 128;
  // Gradients of Qwen3-30B's W1 and input, of DeepSeek-V3's W_down, input and W1, of Mixtral-8x7B's W1; a derivative.
  const Product products[] = {{6, 11, 2 / 3.0},  {4, 11, 2 / 3.0},   {28, 11, 2 / 3.0}, {4, 38, 1 / 3.0},
                              {16, 38, 1 / 3.0}, {112, 22, 1 / 3.0}, {1, 11, 2 / 3.0}};
  for (const Product& product : products)
    for (const u32 clusters : {66U, 57U, 39U}) {
      const i64 count = i64{kExperts} * product.heights * product.cols;
      std::vector<double> times;
      for (u32 cluster = 0; cluster < clusters; ++cluster) {
        double time = 0;
        for (TileRounds rounds(cluster, clusters); rounds.tile() < count; rounds.next())
          time += tile_time(product, rounds.tile());
        times.push_back(time);
      }
      const double mean = std::accumulate(times.begin(), times.end(), 0.0) / clusters;
      EXPECT_LT(std::ranges::max(times), 1.006 * mean + 2)
          << product.heights << " x " << product.cols << ", " << clusters;
    }
}

}  // namespace
}  // namespace glu_ckpt
