#pragma once
/// The grouped MLP by WGMMA and TMA (sm_90a): the arguments of a launch, and the two kernels.

#include <cuda.h>

#include "kernels/mlp/layer_tiles.hpp"

namespace glu_ckpt {

/// The map by which TMA reads or writes some rows of one stored matrix: a box of [kTileCols columns, rows in a GLU
/// block, GLU blocks] that covers them all, or several boxes of `box_rows` rows.
struct TmaWeight {
  CUtensorMap map;
  /// The rows of a GLU block.
  int block_rows = 0;
  /// All of the rows, or those that one of several boxes covers.
  int box_rows = 0;
};

/// Weights are taken in halves: of gate and of up for Gated, else neighbours.
struct Sm90Layer : MlpLayer {
  /// A [rows, K], in boxes of kTileCols columns.
  CUtensorMap a_map;
  /// C and z, in boxes of kTileCols columns and kStoreRows rows; only where they are wide.
  CUtensorMap out_map;
  CUtensorMap z_maps[2];
  /// Two maps for each expert in device memory, one for each half; both are the same where halves are neighbours.
  const TmaWeight* weights = nullptr;
  /// Counts the tiles that are taken, in device memory; 0 before the launch.
  i32* taken = nullptr;
  /// The launch before in the stream is the layer that writes A, with the same tiles.
  bool follows_layer = false;
};

/// Makes the map of a matrix that these boxes cover. Throws DeviceFailed.
TmaWeight make_tma_weight(const StoredMatrix& matrix, const TmaBoxes& boxes);
/// Maps rows [rows, cols] of 16-bit elements, `pitch` elements apart, in boxes of `box_rows` rows. Throws DeviceFailed.
CUtensorMap make_rows_map(const void* data, Dtype dtype, i64 rows, i64 cols, i64 pitch, int box_rows);

/// The rows of A in a tile: `box_rows` are those of the boxes of Sm90Layer::a_map, `tile_rows` those that first_tile
/// has to be made for.
struct TileHeight {
  int box_rows = 0;
  int tile_rows = 0;
};

/// The height of launch_sm90_grouped_gemm().
TileHeight sm90_grouped_gemm_height();
/// Runs a layer of many rows an expert, in halves of kTurnHalfRows. `multiprocessors` are those of the current device.
/// Asynchronous.
void launch_sm90_grouped_gemm(const Sm90Layer& layer, int multiprocessors, GpuStream stream);

/// Runs a layer of few rows an expert: A and B are swapped. `tile_rows` is 16, 32, 64 or 128. Asynchronous.
void launch_sm90_grouped_gemm_swap_ab(const Sm90Layer& layer, int tile_rows, int multiprocessors, GpuStream stream);

}  // namespace glu_ckpt
