#pragma once
/// The backward of the grouped MLP by WGMMA and TMA (sm_90a): the arguments of the three kernels.

#include "kernels/mlp/backward_layer.hpp"
#include "kernels/mlp/grad_tiles.hpp"
#include "kernels/mlp/sm90_grouped_gemm.hpp"

namespace glu_ckpt {

/// The rows along K of a stored weight that one box of its map, or several, bring to a stage.
inline constexpr int kDepthRows = 64;
/// The part of those rows that each block of a cluster loads for both.
inline constexpr int kHalfDepthRows = kDepthRows / 2;
/// The rows of the boxes by which one block reads rows that are its tile's.
inline constexpr int kBackwardBoxRows = 128;

/// Row maps have boxes of kTileCols columns.
struct Sm90Derive {
  BackwardArgs args;
  /// dout, in boxes of kBackwardBoxRows rows.
  CUtensorMap dout_map;
  /// The halves of z (both are u's without a gate) and of dz, and y, in boxes of kStoreRows rows.
  CUtensorMap z_maps[2];
  CUtensorMap dz_maps[2];
  CUtensorMap y_map;
  /// W_down of each expert, in boxes of kHalfDepthRows rows.
  const TmaWeight* down = nullptr;
  /// Counts the tiles that are taken, in device memory; 0 before the launch.
  i32* taken = nullptr;
};

struct Sm90InputGrad {
  BackwardArgs args;
  /// The halves of dz in boxes of kBackwardBoxRows rows, dx in boxes of kStoreRows.
  CUtensorMap dz_maps[2];
  CUtensorMap dx_map;
  /// W_gate and W_up of each expert, in boxes of kHalfDepthRows rows.
  const TmaWeight* weights = nullptr;
  /// As for the derivative.
  i32* taken = nullptr;
};

/// dW [m, n] of one or two matrices that are multiplied with the same rows.
struct Sm90WeightGrad {
  BackwardArgs args;
  i32 matrices = 1;
  i32 m = 0;
  i32 n = 0;
  /// Rows [rows, m] of each matrix, in boxes of kDepthRows rows.
  CUtensorMap a_maps[2];
  /// Rows [rows, n], in boxes of kHalfDepthRows rows.
  CUtensorMap b_map;
  /// The number of each in an expert's table.
  MlpMatrix which[2] = {};
  /// Maps of the gradients, kMlpMatrices for each expert, in boxes of kStoreRows rows; null where they are fp32 or
  /// added to.
  const TmaWeight* out = nullptr;
  /// The launch sets these.
  GradTiles tiles = {};
};

/// `multiprocessors` are those of the current device. Asynchronous.
void launch_sm90_derive(const Sm90Derive& job, int multiprocessors, GpuStream stream);
void launch_sm90_input_grad(const Sm90InputGrad& job, int multiprocessors, GpuStream stream);
void launch_sm90_weight_grad(Sm90WeightGrad job, int multiprocessors, GpuStream stream);

}  // namespace glu_ckpt
