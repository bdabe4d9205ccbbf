#include "forward/load_expert.hpp"

#include <algorithm>
#include <map>
#include <new>

#include "core/fail.hpp"
#include "core/parallel.hpp"
#include "forward/dequantize_expert.hpp"
#include "layout/placement.hpp"

namespace glu_ckpt {
namespace {

constexpr i64 kLineBytes = 64;
/// Windows are read in pieces of this size, so that all threads have some.
constexpr i64 kPieceBytes = i64{1} << 20;

/// Bytes [begin, end) of one tensor.
struct Range {
  i64 begin = 0;
  i64 end = 0;
};

i64 element_offset(const Placement& place, i64 row, i64 col) { return row_offset(place, row) + col * place.col_step; }

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

/// The number of its rows that lie in the first tensor.
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

/// The member to which a matrix of this role and kind belongs.
StoredMatrix& slot(ExpertWeights& weights, const Matrix& matrix, const std::string& name) {
  const bool bias = matrix.kind == TensorKind::Bias;
  if (is_scale(matrix.kind))
    fail(ErrorCode::NotSupported, {{}, name},
         "'{}': scales of quantized weights; only BF16, F16, F32 and MXFP8 can be computed "
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

const ExpertWindow& window_of(const StoredExpert& expert, std::size_t tensor) {
  return *std::ranges::find(expert.windows, tensor, &ExpertWindow::tensor);
}

/// The matrices of an expert whose windows stand at `data`.
ExpertWeights place_expert(const Source& source, const StoredExpert& expert, const std::byte* data) {
  ExpertWeights weights;
  const auto part = [&](std::size_t tensor, Placement place) {
    const ExpertWindow& window = window_of(expert, tensor);
    if (window.wide_at >= 0) return StoredMatrix::Part{data + window.wide_at, widened(place, window.begin)};
    place.offset -= window.begin;
    return StoredMatrix::Part{data + window.at, place};
  };
  const std::vector<QuantizedWeight> quantized = quantized_weights(expert.matrices);
  for (const Matrix* const matrix : expert.matrices) {
    if (std::ranges::find(quantized, matrix, &QuantizedWeight::scales) != quantized.end()) continue;
    StoredMatrix& to = slot(weights, *matrix, source.inventory().tensors[matrix->tensor].name);
    const bool wide = std::ranges::find(quantized, matrix, &QuantizedWeight::weight) != quantized.end();
    to = {.dtype = wide ? Dtype::BF16 : matrix->dtype,
          .rows = matrix->rows,
          .cols = matrix->cols,
          .first = {},
          .tail = {},
          .tail_row = head_rows(*matrix)};
    if (matrix->rows == 0 || matrix->cols == 0) continue;
    if (to.tail_row > 0) to.first = part(matrix->tensor, matrix->place);
    if (to.tail_row < to.rows) to.tail = part(matrix->tail->tensor, matrix->tail->place);
  }
  return weights;
}

/// A quantized weight of an expert that stands at `data`.
struct DequantizeTask {
  QuantizedWeight quantized;
  const StoredExpert* expert = nullptr;
  std::byte* data = nullptr;
};

void dequantize(const Source& source, const DequantizeTask& task) {
  const ExpertWindow& window = window_of(*task.expert, task.quantized.weight->tensor);
  const ExpertWindow& scales = window_of(*task.expert, task.quantized.scales->tensor);
  dequantize_weight(task.quantized, {task.data + window.at, window.begin}, {task.data + scales.at, scales.begin},
                    task.data + window.wide_at, source.inventory().tensors[window.tensor].name);
}

/// Bytes that are read at once.
struct Piece {
  std::size_t tensor = 0;
  i64 offset = 0;
  std::span<std::byte> out;
};

}  // namespace

std::vector<StoredExpert> stored_experts(const ExpertBlock& block) {
  std::vector<StoredExpert> experts(static_cast<std::size_t>(block.num_experts));
  for (const Matrix& matrix : block.matrices)
    experts.at(static_cast<std::size_t>(matrix.expert)).matrices.push_back(&matrix);
  const auto hold = [](StoredExpert& expert, i64 bytes) {
    const i64 at = expert.held_bytes;
    expert.held_bytes += (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
    return at;
  };
  for (StoredExpert& expert : experts) {
    for (const auto& [tensor, range] : tensor_ranges(expert.matrices)) {
      expert.windows.push_back({tensor, range.begin, range.end, hold(expert, range.end - range.begin)});
      expert.bytes += range.end - range.begin;
    }
    for (const QuantizedWeight& quantized : quantized_weights(expert.matrices))
      if (const auto window = std::ranges::find(expert.windows, quantized.weight->tensor, &ExpertWindow::tensor);
          window->wide_at < 0)
        window->wide_at = hold(expert, 2 * (window->end - window->begin));
  }
  return experts;
}

std::vector<ExpertWeights> load_experts(const Source& source, const std::vector<const StoredExpert*>& experts,
                                        HostBuffer& buffer, int jobs, const std::function<void(i64)>& on_progress) {
  i64 held_bytes = 0;
  for (const StoredExpert* const expert : experts) held_bytes += expert->held_bytes;
  std::byte* data = buffer.reserve(held_bytes);
  std::vector<ExpertWeights> weights;
  std::vector<Piece> pieces;
  std::vector<DequantizeTask> tasks;
  for (const StoredExpert* const expert : experts) {
    weights.push_back(place_expert(source, *expert, data));
    for (const ExpertWindow& window : expert->windows)
      for (i64 begin = window.begin; begin < window.end; begin += kPieceBytes) {
        const i64 size = std::min(kPieceBytes, window.end - begin);
        pieces.push_back(
            {window.tensor, begin, {data + window.at + begin - window.begin, static_cast<std::size_t>(size)}});
      }
    for (const QuantizedWeight& quantized : quantized_weights(expert->matrices))
      tasks.push_back({quantized, expert, data});
    data += expert->held_bytes;
  }
  parallel_for(pieces.size(), jobs, [&](std::size_t i, int) {
    source.read(pieces[i].tensor, pieces[i].offset, pieces[i].out);
    if (on_progress) on_progress(static_cast<i64>(pieces[i].out.size()));
  });
  parallel_for(tasks.size(), jobs, [&](std::size_t i, int) { dequantize(source, tasks[i]); });
  return weights;
}

}  // namespace glu_ckpt
