#pragma once
/// The backward of the grouped MLP on a GPU: the arguments that its kernels share, and the kernels for every GPU.
///
///   derive      G = dout W_down, and from it and z: da, du, y and parts of dprobs
///   input grad  dx = da W_gate + du W_up
///   weight grad dW = da^T x, du^T x, dout^T y
///   bias grad, dprobs: sums over columns and rows

#include "kernels/mlp/mlp_layer.hpp"

namespace glu_ckpt {

/// The matrices of an expert that have gradients, in the order of tables of three for each expert.
enum class MlpMatrix { Gate, Up, Down };
inline constexpr int kMlpMatrices = 3;

/// Pointers are to device memory; rows are dense and row-major.
struct BackwardArgs {
  Dtype dtype = Dtype::BF16;
  i32 experts = 0;
  i32 hidden = 0;
  /// F.
  i32 width = 0;
  bool gated = true;
  i64 rows = 0;
  const void* x = nullptr;
  const void* dout = nullptr;
  /// [rows, 2F], F columns of a or da, then F of u or du; [rows, F] without a gate.
  const void* z = nullptr;
  void* dz = nullptr;
  /// [rows, F].
  void* y = nullptr;
  void* dx = nullptr;
  const float* probs = nullptr;
  /// [rows, parts]: the sums of G A over one tile's columns each.
  float* dp_parts = nullptr;
  i32 parts = 0;
  /// The activation that scaled() returns.
  Activation activation;
  ExpertTiles tiles;
  /// kMlpMatrices for each expert.
  const StoredMatrix* weights = nullptr;
  const StoredMatrix* grads = nullptr;
  /// Weight gradients are added to the old ones.
  bool accumulate = false;

  constexpr i64 dz_pitch() const { return gated ? 2 * static_cast<i64>(width) : width; }
};

/// The columns of G whose part of dprobs is one sum.
inline constexpr i32 kSimtPartCols = 64;
inline constexpr i32 kSm90PartCols = 192;

/// These multiply in fp32 without tensor cores, from weights and to gradients of any layout and dtype. Tiles are of
/// kSimtTileRows. Asynchronous; throw DeviceFailed.
void launch_derive_simt(const BackwardArgs& args, GpuStream stream);
void launch_input_grad_simt(const BackwardArgs& args, GpuStream stream);
void launch_weight_grad_simt(const BackwardArgs& args, MlpMatrix matrix, GpuStream stream);

/// One bias's gradients: the sums over an expert's rows of columns of a matrix, times the row's probability where
/// `probs` is not null.
struct BiasGradArgs {
  Dtype dtype = Dtype::BF16;
  i32 experts = 0;
  i32 cols = 0;
  const void* data = nullptr;
  /// The elements from one row to the next, and before the first column.
  i64 pitch = 0;
  i64 first_col = 0;
  const float* probs = nullptr;
  /// [cols, 1], one for each expert.
  const StoredMatrix* grads = nullptr;
  bool accumulate = false;
  ExpertTiles tiles;
};
/// Asynchronous; throws DeviceFailed.
void launch_bias_grad(const BiasGradArgs& args, GpuStream stream);

/// dprobs of each row: the sum of its parts, plus that of dout times the bias of FC2, fp32 [experts, bias_pitch] or
/// null. Asynchronous; throws DeviceFailed.
void launch_dprobs(const BackwardArgs& args, const float* down_bias, i64 bias_pitch, float* dprobs, GpuStream stream);

}  // namespace glu_ckpt
