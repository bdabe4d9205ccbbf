#include "verify/load_expert.hpp"

#include <algorithm>
#include <map>

#include "core/fail.hpp"
#include "core/grow_buffer.hpp"

namespace glu_ckpt {
namespace {

/// Bytes [begin, end) of one tensor.
struct Range {
  i64 begin = 0;
  i64 end = 0;
};

i64 element_offset(const Placement& place, i64 row, i64 col) {
  return place.offset + row / place.block_rows * place.block_step + row % place.block_rows * place.row_step +
         col * place.col_step;
}

/// Steps are never negative, so the first element lies first and the last one last.
Range part_range(const Placement& place, i64 first_row, i64 last_row, const Matrix& matrix) {
  return {element_offset(place, first_row, 0), element_offset(place, last_row, matrix.cols - 1) + matrix.element_bytes};
}

using Ranges = std::map<std::size_t, Range>;

void add_range(Ranges& ranges, std::size_t tensor, const Range& range) {
  const auto [at, added] = ranges.emplace(tensor, range);
  if (added) return;
  at->second.begin = std::min(at->second.begin, range.begin);
  at->second.end = std::max(at->second.end, range.end);
}

/// Of its rows, how many lie in the first tensor.
i64 head_rows(const Matrix& matrix) { return matrix.tail ? matrix.tail->first_row : matrix.rows; }

Ranges tensor_ranges(const std::vector<const Matrix*>& matrices) {
  Ranges ranges;
  for (const Matrix* const matrix : matrices) {
    if (matrix->rows == 0 || matrix->cols == 0) continue;
    if (const i64 head = head_rows(*matrix); head > 0)
      add_range(ranges, matrix->tensor, part_range(matrix->place, 0, head - 1, *matrix));
    if (matrix->tail && matrix->tail->first_row < matrix->rows)
      add_range(ranges, matrix->tail->tensor,
                part_range(matrix->tail->place, matrix->tail->first_row, matrix->rows - 1, *matrix));
  }
  return ranges;
}

/// Where a matrix of this role and kind belongs.
StoredMatrix& slot(ExpertWeights& weights, const Matrix& matrix, const std::string& name) {
  const bool bias = matrix.kind == TensorKind::Bias;
  if (is_scale(matrix.kind))
    fail(ErrorCode::NotSupported, {{}, name},
         "'{}': scales of quantized weights; only BF16, F16 and F32 can be computed "
         "with",
         name);
  switch (matrix.role) {
    case Role::Gate: return bias ? weights.gate_bias : weights.gate;
    case Role::Up: return bias ? weights.up_bias : weights.up;
    case Role::Down: return bias ? weights.down_bias : weights.down;
    case Role::GateUp: break;
  }
  fail(ErrorCode::UnknownGlu, {{}, name}, "'{}': the order of gate and up is unknown", name);
}

}  // namespace

std::vector<const Matrix*> expert_matrices(const ExpertBlock& block, i64 expert) {
  std::vector<const Matrix*> matrices;
  for (const Matrix& matrix : block.matrices)
    if (matrix.expert == expert) matrices.push_back(&matrix);
  return matrices;
}

i64 expert_bytes(const std::vector<const Matrix*>& matrices) {
  i64 bytes = 0;
  for (const auto& [tensor, range] : tensor_ranges(matrices)) bytes += range.end - range.begin;
  return bytes;
}

void load_expert(const Source& source, const std::vector<const Matrix*>& matrices, LoadedExpert& loaded) {
  const Ranges ranges = tensor_ranges(matrices);
  loaded.weights = {};
  loaded.buffers.resize(std::max(loaded.buffers.size(), ranges.size()));
  std::map<std::size_t, const std::byte*> data;
  std::size_t next = 0;
  for (const auto& [tensor, range] : ranges) {
    std::vector<std::byte>& buffer = loaded.buffers[next++];
    grow_buffer(buffer, range.end - range.begin);
    source.read(tensor, range.begin, {buffer.data(), static_cast<std::size_t>(range.end - range.begin)});
    data[tensor] = buffer.data();
  }
  const auto part = [&](std::size_t tensor, Placement place) {
    place.offset -= ranges.at(tensor).begin;
    return StoredMatrix::Part{data.at(tensor), place};
  };
  for (const Matrix* const matrix : matrices) {
    StoredMatrix& to = slot(loaded.weights, *matrix, source.inventory().tensors[matrix->tensor].name);
    to = {.dtype = matrix->dtype,
          .rows = matrix->rows,
          .cols = matrix->cols,
          .first = {},
          .tail = {},
          .tail_row = head_rows(*matrix)};
    if (to.tail_row > 0) to.first = part(matrix->tensor, matrix->place);
    if (to.tail_row < to.rows) to.tail = part(matrix->tail->tensor, matrix->tail->place);
  }
}

}  // namespace glu_ckpt
