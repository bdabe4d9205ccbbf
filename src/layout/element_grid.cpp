#include "layout/element_grid.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/checked_math.hpp"
#include "layout/tensor_kinds.hpp"
#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {
namespace {

/// gpt-oss stores the codes of a block as an axis: of 16 bytes in MXFP4, of 32 where they are MXFP8.
constexpr i64 kBlockCodes = 32;

constexpr ElementGrid kRowScale{1, 0};
constexpr ElementGrid kMatrixScale{0, 0};

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

bool is_fp8(Dtype dtype) { return dtype == Dtype::F8_E4M3 || dtype == Dtype::F8_E5M2; }

/// So many rows or columns for an element: 0, which is all of them, where they are; none where no grid can say so many.
std::optional<std::uint16_t> grid_extent(i64 cell, i64 extent) {
  if (cell > std::numeric_limits<std::uint16_t>::max())
    return cell < extent ? std::nullopt : std::optional<std::uint16_t>(0);
  return static_cast<std::uint16_t>(cell);
}

/// Appends the readings by a format's row; groups are as many as the shape says, unless the weight has their size.
void add_readings(std::vector<GridReading>& readings, const GridRow& row, const FormRef& form,
                  std::span<const i64> shape, const StoredWeight& weight) {
  const auto add = [&](ElementGrid grid) { readings.push_back({row.kind, grid, form}); };
  // Writers keep the axis of columns, or leave it out.
  const auto add_both_forms = [&](ElementGrid grid) {
    add(grid);
    grid.keeps_axis = false;
    add(grid);
  };
  const auto [rows, cols] = weight.extents;
  switch (row.kind) {
    case GridRow::Kind::Fixed: return add(row.grid);
    case GridRow::Kind::Outputs: return add_both_forms(kRowScale);
    case GridRow::Kind::Matrix: return add_both_forms(kMatrixScale);
    case GridRow::Kind::Blocks: {
      const auto of_rows = grid_extent(weight.block_rows, rows), of_cols = grid_extent(weight.block_cols, cols);
      if (!of_rows || !of_cols) return;
      ElementGrid grid = row.grid;
      grid.rows = *of_rows;
      grid.cols = *of_cols;
      add(grid);
      grid.restarts = true;
      if (weight.parts == 2 && !grid.has_unit_axes) add(grid);
      return;
    }
    case GridRow::Kind::Groups: {
      const bool is_told = shape.size() == 2 && shape[row.axis] > 0 && cols % shape[row.axis] == 0;
      const i64 group = weight.group_cols > 0 ? weight.group_cols : is_told ? cols / shape[row.axis] : 0;
      if (const auto of_cols = grid_extent(group, cols); of_cols && group > 0) add({row.grid.rows, *of_cols});
    }
  }
}

/// The grids that a tensor of this kind has by its name, whatever the codes are.
ShortList<GridRow, 4> rows_by_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::Scale: return {kBlockGrid};
    case TensorKind::SecondScale:
    case TensorKind::GlobalScale:
    case TensorKind::InputScale:
    case TensorKind::InputGlobalScale: return {kMatrixGrid};
    case TensorKind::GroupIndex: return {fixed_grid({0, 1})};
    case TensorKind::WeightShape: return {fixed_grid({0, 0, 1, 1, 2})};
    default: return {};
  }
}

}  // namespace

MatrixExtents element_extents(const ElementGrid& grid, const MatrixExtents& weight, i64 parts) {
  const i64 own_parts = grid.restarts ? parts : 1;
  return {grid.rows == 0 ? parts : own_parts * ceil_div(weight.rows / own_parts, grid.rows),
          (grid.cols == 0 ? 1 : ceil_div(weight.cols, grid.cols)) * grid.values};
}

MatrixExtents padded(const ElementGrid& grid, const MatrixExtents& elements) {
  return {ceil_div(elements.rows, grid.row_multiple) * grid.row_multiple,
          ceil_div(elements.cols, grid.col_multiple) * grid.col_multiple};
}

MatrixExtents stored_extents(const ElementGrid& grid, const MatrixExtents& weight, i64 parts) {
  return padded(grid, element_extents(grid, weight, parts));
}

std::vector<i64> stored_shape(TensorKind kind, const ElementGrid& grid, const MatrixExtents& extents, i64 parts,
                              Axes axes) {
  std::vector<i64> shape;
  if (grid.rows != 0 || parts > 1) shape.push_back(extents.rows);
  if (kind != TensorKind::Bias && (grid.cols != 0 || grid.keeps_axis)) shape.push_back(extents.cols);
  if (axes == Axes::InOut && shape.size() == 2) std::swap(shape[0], shape[1]);
  if (grid.has_unit_axes) shape = {extents.rows, 1, extents.cols, 1};
  if (kind == TensorKind::Blocks) {
    shape.back() /= kBlockCodes / grid.cols;
    shape.push_back(kBlockCodes / grid.cols);
  }
  return shape;
}

bool can_be_mx(Dtype weight, Dtype scale) { return is_fp8(weight) && kPowerScales.contains(scale); }

bool is_mx_grid(const ElementGrid& grid) { return std::ranges::find(kMxGrids, grid) != std::end(kMxGrids); }

std::optional<ElementGrid> code_grid(TensorKind kind, const TensorRef& weight, const TensorRef* scales) {
  const std::vector<FormRef> forms = forms_of(kind, weight.dtype);
  const auto fits = [&](const CodeForm& form) {
    if (kind == TensorKind::Weight) return scales != nullptr && form.has_scales(scales->dtype);
    if (stored_axes(kind, kind, Axes::OutIn) == Axes::OutIn) return true;
    // Scales have a column for each row of the weight.
    return scales != nullptr && !scales->shape.empty() && !weight.shape.empty() &&
           checked_mul(weight.shape.back(), form.packing.rows) == scales->shape.back();
  };
  const auto found = std::ranges::find_if(forms, [&](const FormRef& each) { return fits(*each.form); });
  if (found != forms.end()) return found->form->packing;
  return kind == TensorKind::Weight ? std::optional(ElementGrid{}) : std::nullopt;
}

std::vector<GridReading> grid_readings(TensorKind kind, Dtype dtype, std::span<const i64> shape,
                                       const StoredWeight& weight) {
  std::vector<GridReading> readings;
  for (const FormRef& form : forms_of(weight.kind, weight.dtype))
    for (const FormatPart& part : form.form->parts)
      if (part.kind == kind && part.dtypes.contains(dtype))
        for (const GridRow& row : part.grids) add_readings(readings, row, form, shape, weight);
  if (readings.empty())
    for (const GridRow& row : rows_by_name(kind)) add_readings(readings, row, {}, shape, weight);
  return readings;
}

std::vector<i64> shape_by_grid(TensorKind kind, const ElementGrid& grid, const StoredWeight& weight) {
  return stored_shape(kind, grid, stored_extents(grid, weight.extents, weight.parts), weight.parts,
                      stored_axes(kind, weight.kind, weight.axes));
}

std::optional<ElementGrid> find_grid(TensorKind kind, Dtype dtype, std::span<const i64> shape,
                                     const StoredWeight& weight) {
  for (const GridReading& reading : grid_readings(kind, dtype, shape, weight)) {
    const ElementGrid& grid = reading.grid;
    const bool mx = is_mx_grid(grid) && can_be_mx(weight.dtype, dtype);
    if (mx && (stored_axes(kind, weight.kind, weight.axes) != Axes::OutIn || weight.extents.rows % grid.rows != 0 ||
               weight.extents.cols % grid.cols != 0))
      continue;
    // Nobody has seen these turned.
    if (grid.has_unit_axes && weight.axes != Axes::OutIn) continue;
    if (std::ranges::equal(shape, shape_by_grid(kind, grid, weight))) return grid;
  }
  return std::nullopt;
}

bool holds_codes(const std::vector<ExpertBlock>& blocks) {
  return std::ranges::any_of(blocks, [](const ExpertBlock& block) {
    return std::ranges::any_of(block.matrices, [](const Matrix& matrix) { return is_scale(matrix.kind); });
  });
}

namespace {

bool is_of_fp8_blocks(const Matrix& matrix) {
  return is_scale(matrix.kind) && matrix.grid.rows > 0 && matrix.grid.cols == kFp8Blocks.cols;
}

/// Rows of gate that stand together in one tensor with up; 0 where they have one of their own.
i64 run_rows(const Glu& glu, i64 intermediate) {
  if (glu.kind == Glu::Kind::Interleaved) return glu.block_rows;
  return glu.kind == Glu::Kind::Contiguous ? intermediate : 0;
}

}  // namespace

std::string_view unread_form(const std::vector<ExpertBlock>& blocks) {
  for (const ExpertBlock& block : blocks)
    for (const Matrix& matrix : block.matrices)
      if (matrix.kind == TensorKind::Blocks)
        for (const FormRef& each : forms_of(matrix.kind, matrix.dtype))
          if (!each.form->unread.empty()) return each.form->unread;
  return {};
}

bool shares_blocks(const Glu& glu, i64 intermediate, const ElementGrid& grid) {
  if (grid.restarts || grid.rows <= 1 || grid.cols != kFp8Blocks.cols) return false;
  return run_rows(glu, intermediate) % grid.rows != 0;
}

i64 scale_rows_of(const std::vector<ExpertBlock>& blocks) {
  i64 rows = 0;
  for (const ExpertBlock& block : blocks)
    for (const Matrix& matrix : block.matrices)
      if (is_of_fp8_blocks(matrix)) rows = rows == 0 ? matrix.grid.rows : std::min<i64>(rows, matrix.grid.rows);
  return rows;
}

i64 finer_scale_rows(const std::vector<ExpertBlock>& blocks, const std::optional<Glu>& glu,
                     const std::optional<Glu>& shared_glu) {
  i64 rows = 0;
  for (const ExpertBlock& block : blocks) {
    const Glu to = (block.set == ExpertSet::Shared ? shared_glu : glu).value_or(block.glu);
    if (to == block.glu || block.is_optimizer_state() || block.intermediate_size <= 0) continue;
    const i64 from_run = run_rows(block.glu, block.intermediate_size), to_run = run_rows(to, block.intermediate_size);
    for (const Matrix& matrix : block.matrices) {
      if (!is_of_fp8_blocks(matrix) || matrix.role == Role::Down) continue;
      const i64 block_rows = matrix.grid.rows;
      // Blocks that begin anew with up are whole ones of either.
      const bool cuts_from = !matrix.grid.restarts && from_run % block_rows != 0, cuts_to = to_run % block_rows != 0;
      if (cuts_from || (cuts_to && matrix.grid.restarts)) rows = std::gcd(std::gcd(rows, from_run), block_rows);
      if (cuts_to) rows = std::gcd(std::gcd(rows, to_run), block_rows);
    }
  }
  return rows;
}

bool shares_tensor(const ExpertBlock& block, const Matrix& matrix) {
  return block.fused && block.glu.kind != Glu::Kind::None && (matrix.role == Role::Gate || matrix.role == Role::Up);
}

i64 padding_rows(const Matrix& matrix, bool shared) {
  if (shared && matrix.role == Role::Up) return 0;
  const i64 rows = shared ? 2 * matrix.rows : matrix.rows;
  return padded(matrix.grid, {rows, matrix.cols}).rows - rows;
}

}  // namespace glu_ckpt
