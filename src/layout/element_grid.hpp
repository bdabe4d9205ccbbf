#pragma once
/// Reads off kinds, dtypes and shapes which weights each stored element of a quantized weight's tensors is for.

#include <optional>
#include <span>
#include <vector>

#include "glu_ckpt/layout.hpp"
#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

struct MatrixExtents {
  i64 rows = 0;
  i64 cols = 0;
  bool operator==(const MatrixExtents&) const = default;
};

/// The logical weights of one expert in one stored tensor.
struct StoredWeight {
  TensorKind kind = TensorKind::Weight;
  Dtype dtype = Dtype::U8;
  /// The extents of all rows, those of gate and up where they are in one tensor.
  MatrixExtents extents;
  /// 2 where gate and up lie in one tensor, else 1.
  i64 parts = 1;
  /// The axes of the weight's own tensor.
  Axes axes = Axes::OutIn;
  /// The blocks that FP8 weights have scales for.
  i64 block_rows = 128;
  i64 block_cols = 128;
  /// Columns of a group that has a scale; 0: the shape of the scales tells.
  i64 group_cols = 0;
};

/// A way in which the elements of a part may be for the weights.
struct GridReading {
  GridRow::Kind kind = GridRow::Kind::Fixed;
  ElementGrid grid;
  FormRef form;
};

/// DeepSeek-V3's FP8: one scale for 128 x 128 weights.
inline constexpr ElementGrid kFp8Blocks{128, 128};
/// DeepSeek-V3's FP8 with blocks of 1 to 128 rows, where an order of FC1 would cut longer ones.
constexpr ElementGrid fp8_blocks(i64 rows) { return {static_cast<std::uint16_t>(rows), kFp8Blocks.cols}; }
/// The elements that the weights of `parts` matrices below each other have; extents padded to what is stored; both.
MatrixExtents element_extents(const ElementGrid& grid, const MatrixExtents& weight, i64 parts);
MatrixExtents padded(const ElementGrid& grid, const MatrixExtents& elements);
MatrixExtents stored_extents(const ElementGrid& grid, const MatrixExtents& weight, i64 parts);
/// The axes of a tensor of one expert that stores `extents` elements.
std::vector<i64> stored_shape(TensorKind kind, const ElementGrid& grid, const MatrixExtents& extents, i64 parts,
                              Axes axes);

/// Returns whether the dtypes are those of an MXFP8 weight and its scales.
bool can_be_mx(Dtype weight, Dtype scale);
bool is_mx_grid(const ElementGrid& grid);

/// Returns how many weights an element of this tensor holds. Scales tell packed codes from numbers of the same dtype;
/// null where there are none. None where no format packs codes so.
std::optional<ElementGrid> code_grid(TensorKind kind, const TensorRef& weight, const TensorRef* scales);

/// Returns the ways in which a tensor of this kind, with `shape` for each expert, may be for the weight. At most one of
/// them has a given shape, but for matrices of one block: then they say the same, or the first is what the name says.
std::vector<GridReading> grid_readings(TensorKind kind, Dtype dtype, std::span<const i64> shape,
                                       const StoredWeight& weight);
/// The axes that a tensor of this kind has for each expert where it has this grid.
std::vector<i64> shape_by_grid(TensorKind kind, const ElementGrid& grid, const StoredWeight& weight);

/// Returns the grid by which a tensor of this kind, with `shape` for each expert, belongs to the weight; none where no
/// grid fits.
std::optional<ElementGrid> find_grid(TensorKind kind, Dtype dtype, std::span<const i64> shape,
                                     const StoredWeight& weight);

/// Returns whether experts are stored as codes and scales.
bool holds_codes(const std::vector<ExpertBlock>& blocks);

/// Returns a sentence where experts are stored in a form of codes that no program reads; else nothing.
std::string_view unread_form(const std::vector<ExpertBlock>& blocks);

/// Returns the least number of rows of the blocks that FP8 weights have scales for; 0 where there are none.
i64 scale_rows_of(const std::vector<ExpertBlock>& blocks);

/// Returns whether a block of FP8's scales is for rows of gate and of up, in this order of FC1.
bool shares_blocks(const Glu& glu, i64 intermediate, const ElementGrid& grid);

/// Returns the rows that blocks of scales must have so that these orders of FC1, and those that are left, cut none; 0
/// where those they have do.
i64 finer_scale_rows(const std::vector<ExpertBlock>& blocks, const std::optional<Glu>& glu,
                     const std::optional<Glu>& shared_glu);

/// Returns whether gate and up lie in one tensor, and this is one of them.
bool shares_tensor(const ExpertBlock& block, const Matrix& matrix);
/// Rows of padding behind a matrix; those behind gate and up in one tensor (`shared`) count as the gate's.
i64 padding_rows(const Matrix& matrix, bool shared);

}  // namespace glu_ckpt
