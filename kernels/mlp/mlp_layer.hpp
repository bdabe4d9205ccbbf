#pragma once
/// One of the two linear layers of all experts, with what follows it: what every kernel of the grouped MLP is told.

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

/// Columns of the widest tile.
inline constexpr i64 kBiasMultiple = 256;

/// Pointers are to device memory.
struct MlpLayer {
  LayerKind kind = LayerKind::Linear;
  /// Of the left side and the result, to which values are rounded.
  Dtype dtype = Dtype::BF16;
  i32 experts = 0;
  /// Columns of the left side and of the weights.
  i32 depth = 0;
  /// Columns of the result: F or H.
  i32 cols = 0;
  /// The result, and elements from one row to the next.
  void* out = nullptr;
  i64 out_pitch = 0;
  /// Rows of the result begin at multiples of 16 bytes.
  bool wide_stores = false;
  /// fp32 [experts, bias_pitch], or null: of gate and up for Gated, else the first only. The pitch is `cols` rounded
  /// up to a multiple of kBiasMultiple, so that a whole tile's columns can be read.
  const float* bias[2] = {};
  i64 bias_pitch = 0;
  /// fp32, one for each row.
  const float* probs = nullptr;
  /// As scaled() returns it.
  Activation activation;
  ExpertTiles tiles;
};

}  // namespace glu_ckpt
