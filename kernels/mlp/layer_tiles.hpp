#pragma once
/// Which columns of C a tile of the sm_90a kernels has, and how FC1 counts what it has written, by which FC2 begins
/// before FC1 has ended. Both sides of the count are here: FC2 would wait for ever for a column that no warp counts.

#include "kernels/mlp/mlp_layer.hpp"
#include "kernels/mlp/tma_boxes.hpp"

namespace glu_ckpt {

/// The rows of C that a warp stores at once, and the warps of a warpgroup.
inline constexpr int kStoreRows = 16;
inline constexpr int kGroupWarps = 4;

/// The rows of a tile of the backward's kernels, of a cluster's two blocks together: those that first_tile has to be
/// made for.
inline constexpr int kBackwardTileRows = 256;
/// The columns of such a tile of the input's gradient.
inline constexpr int kInputGradCols = 256;

/// The columns of C in a tile whose halves of weights have so many rows.
constexpr int tile_cols(LayerKind kind, int half_rows) { return kind == LayerKind::Gated ? half_rows : 2 * half_rows; }

/// The first weight row of a half of tile `n`.
constexpr int half_row(LayerKind kind, int half_rows, int n, int half) {
  return kind == LayerKind::Gated ? n * half_rows : (2 * n + half) * half_rows;
}

/// The columns, of `cols` from `first` on, that a layer of `layer_cols` has.
constexpr int cols_within(int first, int cols, int layer_cols) {
  const int rest = layer_cols - first;
  return rest < 0 ? 0 : rest < cols ? rest : cols;
}

/// The columns of tile `n` that a warpgroup of the kernel of few rows has: kTileCols of each half.
constexpr int group_cols(LayerKind kind, int layer_cols, int n, int group) {
  int cols = 0;
  for (int half = 0; half < tile_cols(kind, kHalfRows) / kHalfRows; ++half)
    cols += cols_within(half_row(kind, kHalfRows, n, half) + group * kTileCols, kTileCols, layer_cols);
  return cols;
}

/// How many of the squares of a tile's column, kStoreRows rows each, are a warp's in that kernel: every kGroupWarps-th.
constexpr int warp_squares(int squares, int warp) { return (squares - warp + kGroupWarps - 1) / kGroupWarps; }

/// All that FC1 counts of an expert: a 1 for each column of kStoreRows rows of each of its `tiles` of `tile_rows`.
constexpr u64 all_written(int tiles, int tile_rows, int layer_cols) {
  return static_cast<u64>(tiles) * static_cast<unsigned>(tile_rows / kStoreRows) * static_cast<unsigned>(layer_cols);
}

}  // namespace glu_ckpt
