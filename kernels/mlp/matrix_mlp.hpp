#pragma once
/// The grouped MLP by Hopper's matrix instructions: what a launch is told.

#include <cuda.h>

#include "kernels/mlp/mlp_layer.hpp"
#include "kernels/mlp/weight_boxes.hpp"

namespace glu_ckpt {

/// How the copy engine reads kHalfRows rows of one stored matrix: a box of [kTileCols columns, rows in a block of K,
/// blocks of K] that covers them all, or several boxes of `box_rows` rows.
struct WeightMap {
  CUtensorMap map;
  /// K.
  int block_rows = 0;
  /// kHalfRows, or the rows that one of several boxes covers.
  int box_rows = 0;
};

/// Rows of the result that a warp stores at once.
inline constexpr int kStoreRows = 16;

/// Weights are taken in halves of kHalfRows rows: of gate and of up for Gated, else neighbours.
struct MatrixLayer : MlpLayer {
  /// The left side: [rows, depth], boxes of kTileCols columns.
  CUtensorMap x;
  /// The result, boxes of kTileCols columns and kStoreRows rows; only where wide_stores.
  CUtensorMap out_map;
  /// Two for each expert in device memory, the halves' (the same twice where halves are neighbours).
  const WeightMap* weights = nullptr;
};

/// Rows of a tile's left side that launch_matrix_layer() works with, for about so many rows an expert: those of the
/// boxes of MatrixLayer::x, and those that first_tile has to be made for. Depends on nothing else, so that equal
/// sizes make sums in equal order.
struct TileHeight {
  int box_rows = 0;
  int tile_rows = 0;
};
TileHeight choose_tile_height(i64 rows, i64 experts);

/// `multiprocessors` of the current device. Asynchronous. Throws DeviceFailed.
void launch_matrix_layer(const MatrixLayer& layer, const TileHeight& height, int multiprocessors, GpuStream stream);

}  // namespace glu_ckpt
