#pragma once
/// One of the two linear layers of all experts with its epilogue, C = epilogue(A B^T): the arguments that all kernels
/// of the grouped MLP share, and the kernels for every GPU. A [rows, K] holds the rows of all experts, B [N, K] is an
/// expert's weight, C is [rows, N].

#include <limits>

#include "glu_ckpt/ops/grouped_mlp.hpp"
#include "kernels/grouped_gemm/expert_tiles.hpp"

namespace glu_ckpt {

enum class LayerKind {
  /// FC1: a column's sums are those of gate and up, the result is act(gate, up) p.
  Gated,
  /// FC1 without a gate: the result is act(up) p.
  Ungated,
  /// FC2: the result is the sum, plus the bias times p.
  Linear,
};

/// The same activation with constants that make (ac s(alpha ac)) (uc + offset) its formula, to the last bit: no number
/// is above infinity, and u + -0 is u for every u. It concerns ClampedSwiglu, QuickGeglu and ClampedQuickGeglu; kernels
/// ignore the constants of other activations.
inline Activation scaled(Activation activation) {
  if (activation.kind == ActivationKind::QuickGeglu) activation.limit = std::numeric_limits<float>::infinity();
  if (activation.kind == ActivationKind::ClampedSwiglu) {
    activation.alpha = 1;
    activation.offset = -0.0F;
  }
  return activation;
}

/// A multiple of the columns of every tile: 96, 128, 192, and 256.
inline constexpr i64 kBiasMultiple = 768;

/// A matrix [rows, MlpLayer::n] in device memory that is written.
struct RowsOut {
  void* data = nullptr;
  /// The elements from one row to the next.
  i64 pitch = 0;
  /// Rows begin at multiples of 16 bytes.
  bool wide = false;
};

/// Pointers are to device memory.
struct MlpLayer {
  LayerKind kind = LayerKind::Linear;
  /// The dtype of A and C, to which values are rounded.
  Dtype dtype = Dtype::BF16;
  i32 experts = 0;
  /// K: the columns of A and of the weights.
  i32 k = 0;
  /// N: the columns of C, F or H.
  i32 n = 0;
  RowsOut out;
  /// FC1's rounded sums, of gate (for Gated alone) and up; without an address where they are not saved.
  RowsOut z[2];
  /// fp32 [experts, bias_pitch], or null: gate's and up's for Gated, else the first only. The pitch is N rounded up to
  /// a multiple of kBiasMultiple, so that a whole tile's columns can be read.
  const float* bias[2] = {};
  i64 bias_pitch = 0;
  /// fp32, one for each row.
  const float* probs = nullptr;
  /// The activation that scaled() returns.
  Activation activation;
  ExpertTiles tiles;
};

/// A layer by ordinary multiplications in fp32: for fp32, and for GPUs without WGMMA.
struct SimtLayer : MlpLayer {
  /// A, and the elements from one of its rows to the next.
  const void* a = nullptr;
  i64 a_pitch = 0;
  /// Two matrices for each expert, in device memory, of any layout and dtype: gate and up for Gated, else the first
  /// only counts.
  const StoredMatrix* weights = nullptr;
};

/// The rows of a tile of launch_grouped_gemm_simt(), for make_expert_tiles().
inline constexpr int kSimtTileRows = 64;

/// Tiles are for at most `rows` rows. Asynchronous. Throws DeviceFailed.
void launch_grouped_gemm_simt(const SimtLayer& layer, i64 rows, GpuStream stream);

/// Copies `count` matrices [rows, cols] of 16-bit elements, in device memory and of any layout, one after the other to
/// `out` with `pitch` elements from one row to the next. Elements between cols and pitch are not written. Asynchronous.
/// Throws DeviceFailed.
void copy_dense(const StoredMatrix* matrices, i64 count, i64 rows, i64 cols, void* out, i64 pitch, GpuStream stream);

/// Writes `count` biases [rows, 1] of any layout and dtype as fp32 [count, pitch]; a bias that is not there and the
/// elements behind its rows are 0. Asynchronous. Throws DeviceFailed.
void widen_biases(const StoredMatrix* biases, i64 count, i64 rows, float* out, i64 pitch, GpuStream stream);

}  // namespace glu_ckpt
