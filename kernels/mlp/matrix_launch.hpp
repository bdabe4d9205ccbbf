#pragma once
/// The kernels that launch_matrix_layer() chooses from.

#include "kernels/mlp/matrix_mlp.hpp"

namespace glu_ckpt {

TileHeight wide_height();
void launch_wide_layer(const MatrixLayer& layer, int multiprocessors, GpuStream stream);

/// `rows`: 16, 32, 64 or 128, of a tile's left side.
void launch_narrow_layer(const MatrixLayer& layer, int rows, int multiprocessors, GpuStream stream);

}  // namespace glu_ckpt
