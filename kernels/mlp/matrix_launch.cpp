#include "kernels/mlp/matrix_launch.hpp"

#include <string>

#include "kernels/common/cuda_check.hpp"

namespace glu_ckpt {

TileHeight choose_tile_height(i64 rows, i64 experts) {
  const i64 each = (rows + experts - 1) / experts;
  if (each > 128) return wide_height();
  const int height = each > 64 ? 128 : each > 24 ? 64 : each > 8 ? 32 : 16;
  return {height, height};
}

void launch_matrix_layer(const MatrixLayer& layer, const TileHeight& height, int multiprocessors, GpuStream stream) {
  if (height.tile_rows == wide_height().tile_rows)
    launch_wide_layer(layer, multiprocessors, stream);
  else
    launch_narrow_layer(layer, height.tile_rows, multiprocessors, stream);
  check_launch("matrix_layer", [&] {
    return std::to_string(layer.experts) + " experts, " + std::to_string(layer.depth) + " to " +
           std::to_string(layer.cols) + ", tiles of " + std::to_string(height.tile_rows) + " rows";
  });
}

}  // namespace glu_ckpt
