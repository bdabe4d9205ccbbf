#pragma once
/// Weights that a checkpoint stores as codes and scales: which tensors belong together, and by which rule the codes
/// become numbers.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/error.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/ops/decode_codes.hpp"
#include "glu_ckpt/tensor.hpp"
#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

/// The stored tensors of one weight, and what they decode to.
struct QuantizedTensor {
  /// The name of the decoded tensor.
  std::string name;
  /// The shape of the decoded tensor: [..., rows, cols], or [..., cols, rows] where it is `transposed`.
  std::vector<i64> shape;
  Codes codes = Codes::E4m3;
  /// Its format, where the tensors tell; else its codes do.
  const QuantFormat* format = nullptr;
  /// The row of the format by which its scales are for its weights.
  GridRow::Kind grid = GridRow::Kind::Fixed;
  /// Matrices of the tensor, one for each index of its leading axes; each is [rows, cols] as its codes are stored,
  /// which is [out, in] unless `in_out`.
  i64 matrices = 1;
  i64 rows = 0;
  i64 cols = 0;
  /// The codes have the axes of their format, and the decoded tensor those of its naming, which turns its experts.
  bool transposed = false;
  /// The codes are stored as [in, out], as the naming turns its experts.
  bool in_out = false;
  /// A byte holds the codes of two rows, and not of two columns, as ModelOpt turns what it packed.
  bool pairs_of_rows = false;
  /// The codes of 32 columns have an axis of their own, as gpt-oss stores them: [..., rows, cols / 32, bytes].
  bool has_block_axis = false;
  /// One scale is for so many rows and columns of a matrix; the last ones may have fewer.
  i64 cell_rows = 1;
  i64 cell_cols = 1;
  /// Blocks begin anew behind so many rows, where the scales of gate and of up were put behind each other; 0: never.
  i64 restart_rows = 0;
  /// Indices of stored tensors.
  std::size_t weight = 0;
  std::size_t scales = 0;
  /// A second scale for a whole matrix; by which is multiplied, or, as compressed-tensors has it, divided.
  std::optional<std::size_t> global;
  bool global_divides = false;
  /// The numbers that stand for zero, packed along rows; without them 8 does.
  std::optional<std::size_t> zeros;
  /// Added to each of a word, with carries: GPTQ's first version stores words less 1 in each.
  int zero_offset = 0;
  /// quantization_config says that all of them are 8 (`sym`), which no reader may take for granted.
  bool zeros_are_said_8 = false;
  /// The group of each column, where weights were reordered (`g_idx`).
  std::optional<std::size_t> groups;
  /// The shape as compressed-tensors states it, two numbers for each matrix.
  std::optional<std::size_t> stated_shape;
  /// Gate and up, which stand in one tensor, have a scale each for all of their rows: FP8 per tensor in `scales`, NVFP4
  /// in `global`.
  bool scales_of_parts = false;
  /// Then: rows, or columns of what is `in_out`, of gate before the first ones of up, as often as there are; 0 where
  /// nothing says it, and both scales must be equal.
  i64 part_rows = 0;
  /// One value is for all matrices, as ModelOpt has it where the experts of a layer are one parameter (Llama 4): FP8
  /// per tensor in `scales`, NVFP4 in `global`.
  bool one_for_all = false;
  /// ModelOpt's decoder gives +0 for code 8 of FP4, others -0.
  bool positive_zero = false;
  /// Scales are rounded to the dtype of the decoded weight before they multiply.
  bool rounds_scale = false;
  /// Products are rounded to the dtype of the scales, where that is shorter than F32.
  bool rounds_product = false;

  /// The matrix whose scales, and whose second scale, are those of this one.
  i64 scales_of(i64 matrix) const { return one_for_all && !global ? 0 : matrix; }
  i64 global_of(i64 matrix) const { return one_for_all ? 0 : matrix; }
  i64 grid_rows() const { return grid_row_of(rows - 1) + 1; }
  /// The row of scales that is for a row of the matrix.
  i64 grid_row_of(i64 row) const {
    if (restart_rows == 0) return row / cell_rows;
    return row / restart_rows * ((restart_rows + cell_rows - 1) / cell_rows) + row % restart_rows / cell_rows;
  }
  i64 grid_cols() const { return (cols + cell_cols - 1) / cell_cols; }
  /// Indices of all stored tensors that it is made of.
  std::vector<std::size_t> parts() const {
    std::vector<std::size_t> all{weight, scales};
    for (const std::optional<std::size_t>& part : {global, zeros, groups, stated_shape})
      if (part) all.push_back(*part);
    return all;
  }
  /// 0 for gate and 1 for up, of a row, or of a column of what is `in_out`.
  i64 part_of(i64 row) const { return part_rows == 0 ? 0 : row / part_rows % 2; }
};

/// Says which weights one scale is for.
std::string cell_text(const QuantizedTensor& weight);

/// The axes of a weight that a naming explains, and whether it is a fused FC1.
struct WeightPlace {
  // Axes alone are those of a weight that is no fused FC1.
  WeightPlace(Axes of) : axes(of) {}
  Axes axes = Axes::OutIn;
  /// Gate and up stand in one tensor.
  bool is_fused = false;
};

/// The places of weights in their naming, by the tensor of their codes.
using WeightAxes = std::map<std::size_t, WeightPlace>;

/// Says why weights that are stored as codes have no numbers here. They can be moved as they are.
struct Undecodable {
  ErrorCode code = ErrorCode::NotSupported;
  std::string tensor;
  std::string why;
};

/// All that is quantized in a checkpoint.
struct Quantization {
  /// The tensors in the order of their weights.
  std::vector<QuantizedTensor> tensors;
  /// Stored tensors that are of no use once the weights are decoded: scales, and what says how to quantize inputs.
  std::vector<std::size_t> companions;
  /// The formats, for people: "FP8 in 128x128 blocks".
  std::vector<std::string> formats;
  /// The program whose decoder is followed, bit for bit.
  std::string decoder;
  /// The first weight that cannot be decoded.
  std::optional<Undecodable> undecodable;
};

}  // namespace glu_ckpt
