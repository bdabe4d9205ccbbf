#pragma once
/// The grouped MLP by ordinary multiplications in fp32: for fp32, and for GPUs without Hopper's matrix instructions.

#include "kernels/mlp/mlp_layer.hpp"

namespace glu_ckpt {

struct PlainLayer : MlpLayer {
  /// The left side [rows, depth], and elements from one row to the next.
  const void* x = nullptr;
  i64 x_pitch = 0;
  /// In device memory, for each expert two: gate and up for Gated, else the first only. Of any layout and dtype.
  const StoredMatrix* weights = nullptr;
};

/// Rows of a tile, for make_expert_tiles().
inline constexpr int kPlainTileRows = 64;

/// Tiles are for at most `rows` rows. Asynchronous. Throws DeviceFailed.
void launch_plain_layer(const PlainLayer& layer, i64 rows, GpuStream stream);

}  // namespace glu_ckpt
