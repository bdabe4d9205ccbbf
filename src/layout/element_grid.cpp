#include "layout/element_grid.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "layout/tensor_kinds.hpp"

namespace glu_ckpt {
namespace {

/// gpt-oss stores the codes of a block as an axis: of 16 bytes in MXFP4, of 32 where they are MXFP8.
constexpr i64 kBlockCodes = 32;

constexpr ElementGrid kRowScale{1, 0};
constexpr ElementGrid kMatrixScale{0, 0};

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

bool is_power_of_two_scale(Dtype dtype) { return dtype == Dtype::U8 || dtype == Dtype::F8_E8M0; }
bool is_float_scale(Dtype dtype) { return dtype == Dtype::F32 || dtype == Dtype::BF16 || dtype == Dtype::F16; }
/// DeepSeek-V4 calls a byte of two codes I8; INT8 has no such scales.
bool is_byte_of_fp4(Dtype weight, Dtype scale) { return weight == Dtype::I8 && scale == Dtype::F8_E8M0; }
bool is_fp8(Dtype dtype) { return dtype == Dtype::F8_E4M3 || dtype == Dtype::F8_E5M2; }

/// Writers keep the axis of columns, or leave it out.
void add_both_forms(std::vector<ElementGrid>& grids, ElementGrid grid) {
  grids.push_back(grid);
  grid.keeps_axis = false;
  grids.push_back(grid);
}

/// The grid of groups of columns that gives a row so many groups.
void add_groups(std::vector<ElementGrid>& grids, std::uint16_t rows, i64 cols, i64 groups) {
  constexpr i64 kMost = std::numeric_limits<std::uint16_t>::max();
  if (groups > 0 && cols % groups == 0 && cols / groups <= kMost)
    grids.push_back({rows, static_cast<std::uint16_t>(cols / groups)});
}

std::vector<ElementGrid> plain_scale_grids(Dtype dtype, std::span<const i64> shape, const StoredWeight& weight) {
  std::vector<ElementGrid> grids;
  if (weight.kind == TensorKind::PackedWeight && weight.dtype == Dtype::I32) {
    add_both_forms(grids, kRowScale);
    if (shape.size() == 2) add_groups(grids, 1, weight.extents.cols, shape[1]);
  } else if (weight.kind == TensorKind::PackedWeight || weight.dtype == Dtype::U8) {
    if (dtype == Dtype::F8_E4M3) grids.push_back({1, 16});
    if (is_power_of_two_scale(dtype)) grids.push_back({1, 32});
  } else if (can_be_mx(weight.dtype, dtype)) {
    grids.assign(std::begin(kMxGrids), std::end(kMxGrids));
  } else if ((is_fp8(weight.dtype) || weight.dtype == Dtype::I8) && is_float_scale(dtype)) {
    add_both_forms(grids, kRowScale);
    add_both_forms(grids, kMatrixScale);
    grids.push_back(fp8_blocks(weight.block_rows));
    if (weight.parts == 2) grids.push_back(restarting_blocks(weight.block_rows));
    grids.push_back(modelopt_blocks(weight.block_rows));
  }
  return grids;
}

/// The grids that a tensor of this kind may have. At most one of them has a given shape, but for matrices of one block:
/// then they say the same, or the first is what the name says.
std::vector<ElementGrid> grids_of(TensorKind kind, Dtype dtype, std::span<const i64> shape,
                                  const StoredWeight& weight) {
  std::vector<ElementGrid> grids;
  const i64 cols = weight.extents.cols;
  switch (kind) {
    case TensorKind::Scale:
      if (is_byte_of_fp4(weight.dtype, dtype)) return {{1, 32}};
      if (can_be_mx(weight.dtype, dtype)) grids.assign(std::begin(kMxGrids), std::end(kMxGrids));
      grids.push_back(fp8_blocks(weight.block_rows));
      if (weight.parts == 2) grids.push_back(restarting_blocks(weight.block_rows));
      break;
    case TensorKind::PlainScale: return plain_scale_grids(dtype, shape, weight);
    case TensorKind::SecondScale:
    case TensorKind::GlobalScale:
    case TensorKind::InputScale:
    case TensorKind::InputGlobalScale: add_both_forms(grids, kMatrixScale); break;
    case TensorKind::Scales:
      if (weight.kind == TensorKind::Blocks) grids.push_back({1, 32});
      if (weight.kind == TensorKind::QWeight && shape.size() == 2) add_groups(grids, 1, cols, shape[0]);
      break;
    case TensorKind::QZeros:
      if (weight.kind == TensorKind::QWeight && shape.size() == 2) add_groups(grids, 8, cols, shape[0]);
      break;
    case TensorKind::ZeroPoint:
      if (weight.kind == TensorKind::PackedWeight && shape.size() == 2) add_groups(grids, 8, cols, shape[1]);
      break;
    case TensorKind::GroupIndex: grids.push_back({0, 1}); break;
    case TensorKind::WeightShape: grids.push_back({0, 0, 1, 1, 2}); break;
    case TensorKind::PackedGroupIndex:
      if (weight.kind == TensorKind::PackedWeight && dtype == Dtype::I32) grids.push_back({0, 1});
      break;
    case TensorKind::Weight:
    case TensorKind::Bias:
    case TensorKind::PackedWeight:
    case TensorKind::Blocks:
    case TensorKind::QWeight: break;
  }
  return grids;
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

bool can_be_mx(Dtype weight, Dtype scale) { return is_fp8(weight) && is_power_of_two_scale(scale); }

bool is_mx_grid(const ElementGrid& grid) { return std::ranges::find(kMxGrids, grid) != std::end(kMxGrids); }

std::optional<ElementGrid> code_grid(TensorKind kind, const TensorRef& weight, const TensorRef* scales) {
  const Dtype dtype = weight.dtype;
  switch (kind) {
    case TensorKind::Weight: {
      if (scales == nullptr) return ElementGrid{};
      const bool packed = dtype == Dtype::U8 ? scales->dtype == Dtype::F8_E4M3 || is_power_of_two_scale(scales->dtype)
                                             : is_byte_of_fp4(dtype, scales->dtype);
      return packed ? kNibbles : ElementGrid{};
    }
    case TensorKind::PackedWeight:
      if (dtype == Dtype::U8) return kNibbles;
      return dtype == Dtype::I32 ? std::optional(kRowWords) : std::nullopt;
    case TensorKind::Blocks:
      if (dtype == Dtype::F8_E4M3) return ElementGrid{};
      return dtype == Dtype::U8 ? std::optional(kNibbles) : std::nullopt;
    case TensorKind::QWeight:
      // Scales have a column for each row of the weight. AWQ packs those, GPTQ the others.
      if (dtype != Dtype::I32 || scales == nullptr || scales->shape.empty() || weight.shape.empty()) return {};
      if (weight.shape.back() == scales->shape.back()) return kRowWords;
      return weight.shape.back() == scales->shape.back() / 8 && scales->shape.back() % 8 == 0
                 ? std::optional(kColumnWords)
                 : std::nullopt;
    default: return std::nullopt;
  }
}

std::optional<ElementGrid> find_grid(TensorKind kind, Dtype dtype, std::span<const i64> shape,
                                     const StoredWeight& weight) {
  for (const ElementGrid& grid : grids_of(kind, dtype, shape, weight)) {
    const bool mx = is_mx_grid(grid) && can_be_mx(weight.dtype, dtype);
    if (mx && (stored_axes(kind, weight.kind, weight.axes) != Axes::OutIn || weight.extents.rows % grid.rows != 0 ||
               weight.extents.cols % grid.cols != 0))
      continue;
    // Nobody has seen these turned.
    if (grid.has_unit_axes && weight.axes != Axes::OutIn) continue;
    const std::vector<i64> expected = stored_shape(kind, grid, stored_extents(grid, weight.extents, weight.parts),
                                                   weight.parts, stored_axes(kind, weight.kind, weight.axes));
    if (std::ranges::equal(shape, expected)) return grid;
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

bool holds_mxfp8_blocks(const std::vector<ExpertBlock>& blocks) {
  return std::ranges::any_of(blocks, [](const ExpertBlock& block) {
    return std::ranges::any_of(block.matrices, [](const Matrix& matrix) {
      return matrix.kind == TensorKind::Blocks && matrix.dtype == Dtype::F8_E4M3;
    });
  });
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
