#include "forward/dequantize_expert.hpp"

#include "core/fail.hpp"
#include "glu_ckpt/ops/mxfp8.hpp"
#include "layout/element_grid.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

bool is_mx_scales(const Matrix& matrix) {
  return (matrix.kind == TensorKind::Scale || matrix.kind == TensorKind::PlainScale) && is_mx_grid(matrix.grid);
}

bool is_fp8_weight(const Matrix& matrix) {
  return matrix.kind == TensorKind::Weight && (matrix.dtype == Dtype::F8_E4M3 || matrix.dtype == Dtype::F8_E5M2);
}

const std::uint8_t* at(const TensorBytes& bytes, i64 offset) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data + (offset - bytes.begin));
}

}  // namespace

Dequantized::Dequantized(const ExpertBlock& block) {
  std::array<bool, 4> is_fp8{};
  for (const Matrix& matrix : block.matrices)
    if (is_fp8_weight(matrix)) is_fp8[static_cast<std::size_t>(matrix.role)] = true;
  for (const Matrix& matrix : block.matrices)
    if (const auto role = static_cast<std::size_t>(matrix.role); is_mx_scales(matrix)) has_scales_[role] = is_fp8[role];
}

bool Dequantized::concerns(const Matrix& matrix) const {
  return matrix.kind != TensorKind::Bias && has_scales_[static_cast<std::size_t>(matrix.role)];
}

Dtype Dequantized::dtype(const Matrix& matrix) const { return concerns(matrix) ? Dtype::BF16 : matrix.dtype; }

std::vector<QuantizedWeight> quantized_weights(const std::vector<const Matrix*>& matrices) {
  std::vector<QuantizedWeight> found;
  for (const Matrix* const scales : matrices)
    for (const Matrix* const weight : matrices)
      if (is_mx_scales(*scales) && is_fp8_weight(*weight) && weight->role == scales->role)
        found.push_back({weight, scales});
  return found;
}

Placement widened(Placement place, i64 begin) {
  place.offset = 2 * (place.offset - begin);
  place.block_step *= 2;
  place.row_step *= 2;
  place.col_step *= 2;
  return place;
}

void dequantize_weight(const QuantizedWeight& quantized, const TensorBytes& weight, const TensorBytes& scales,
                       std::byte* out, const std::string& name) {
  const Matrix& matrix = *quantized.weight;
  const Matrix& of_scales = *quantized.scales;
  // Rows that share scales stand together: no block of gate or up rows is cut by them.
  const i64 group = of_scales.grid.rows;
  const MxFormat format{group, matrix.cols, group == 1 ? MxAxis::Row : MxAxis::Column, matrix.dtype};
  const Placement wide = widened(matrix.place, weight.begin);
  for (i64 row = 0; row < matrix.rows; row += group) {
    const auto* codes = at(weight, row_offset(matrix.place, row));
    const auto* bytes = at(scales, row_offset(of_scales.place, row / group));
    const auto inexact = mx_dequantize_host(format, codes, bytes, mx_scale_extents(format).cols,
                                            out + row_offset(wide, row), Dtype::BF16);
    if (!inexact) continue;
    const i64 col = *inexact % matrix.cols;
    const std::uint8_t e = bytes[group == 1 ? col / kMxBlock : col];
    fail(ErrorCode::NotExact, {{}, name}, "'{}': {} [{}, {}] is {} times 2^{}, which bf16 does not hold", name,
         to_string(matrix.role), row + *inexact / matrix.cols, col, fp8_value(codes[*inexact], matrix.dtype),
         static_cast<int>(e) - 127);
  }
}

}  // namespace glu_ckpt
