/// decode_codes() on a CPU, made of what decode_row() and decode_words() decode.

#include <algorithm>
#include <vector>

#include "core/coded_weight.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "quant/decode_row.hpp"
#include "quant/decode_words.hpp"

namespace glu_ckpt {
namespace {

/// The scales of one row of cells, one for each column.
void expand_scales(const CodedWeight& weight, i64 matrix, i64 cell_row, Dtype to, std::vector<float>& expanded) {
  const i64 grid_rows = (weight.rows - 1) / weight.cell_rows + 1, grid_cols = (weight.cols - 1) / weight.cell_cols + 1;
  const i64 size = dtype_bits(weight.scale_dtype) / 8;
  const auto* const stored =
      static_cast<const std::byte*>(weight.scales) + (matrix * grid_rows + cell_row) * grid_cols * size;
  for (i64 cell = 0; cell < grid_cols; ++cell) {
    const CombinedScale rule{weight.globals == nullptr ? std::nullopt : std::optional(weight.globals[matrix]),
                             weight.global_divides, weight.rounds_scale};
    const i64 first = cell * weight.cell_cols;
    std::fill_n(expanded.begin() + first, std::min(weight.cell_cols, weight.cols - first),
                rule.of(scale_value(weight.scale_dtype, stored + cell * size), to));
  }
}

std::vector<i64> groups_of(const CodedWeight& weight, i64 matrix, i64 groups) {
  std::vector<i64> of_column(static_cast<std::size_t>(weight.cols));
  for (i64 col = 0; col < weight.cols; ++col) {
    const i64 group = weight.column_groups != nullptr ? i64{weight.column_groups[matrix * weight.cols + col]}
                                                      : col / weight.cell_cols;
    if (group >= groups)
      fail(ErrorCode::Usage, {}, "decode_codes_host: column {} of matrix {} is of group {}; there are {}", col, matrix,
           group, groups);
    of_column[static_cast<std::size_t>(col)] = group;
  }
  return of_column;
}

/// decode_row(), with products that are rounded to fp16 first where the weight asks for it.
void decode_one_row(const CodedWeight& weight, const CodeRow& row, std::vector<float>& products, Dtype to,
                    std::byte* out) {
  if (!weight.rounds_to_f16) return decode_row(row, to, out);
  decode_row(row, Dtype::F32, reinterpret_cast<std::byte*>(products.data()));
  round_row(products, Dtype::F16);
  narrow_row(products, to, out);
}

void decode_in_words(const CodedWeight& weight, Dtype to, void* out) {
  const i64 groups = (weight.cols - 1) / weight.cell_cols + 1, count = weight.rows * weight.cols;
  const i64 scale_bytes = weight.rows * groups * (dtype_bits(weight.scale_dtype) / 8);
  for (i64 m = 0; m < weight.matrices; ++m) {
    const u32* const zeros = weight.zeros == nullptr ? nullptr : weight.zeros + m * (weight.rows / 8) * groups;
    const WordMatrix matrix{.codes = weight.codes,
                            .rows = weight.rows,
                            .cols = weight.cols,
                            .words = static_cast<const std::byte*>(weight.data) + m * (count / 2),
                            .scales = static_cast<const std::byte*>(weight.scales) + m * scale_bytes,
                            .scale_dtype = weight.scale_dtype,
                            .zeros = reinterpret_cast<const std::byte*>(zeros),
                            .zero_offset = weight.zero_offset,
                            .groups = groups,
                            .group_of = groups_of(weight, m, groups)};
    decode_words(matrix, 0, weight.rows, to, static_cast<std::byte*>(out) + m * count * (dtype_bits(to) / 8));
  }
}

}  // namespace

void decode_codes_host(const CodedWeight& weight, Dtype to, void* out) {
  if (check_coded_weight("decode_codes_host", weight, to, out) == 0) return;
  if (in_words(weight)) return decode_in_words(weight, to, out);
  const i64 stored = code_bytes(weight.codes, weight.cols), decoded = weight.cols * (dtype_bits(to) / 8);
  const auto* codes = static_cast<const std::byte*>(weight.data);
  auto* place = static_cast<std::byte*>(out);
  std::vector<float> scales(static_cast<std::size_t>(weight.cols)), products(scales.size());
  for (i64 matrix = 0; matrix < weight.matrices; ++matrix)
    for (i64 row = 0; row < weight.rows; ++row, codes += stored, place += decoded) {
      if (row % weight.cell_rows == 0) expand_scales(weight, matrix, row / weight.cell_rows, to, scales);
      decode_one_row(weight, {weight.codes, codes, weight.cols, scales.data(), weight.positive_zero}, products, to,
                     place);
    }
}

}  // namespace glu_ckpt
