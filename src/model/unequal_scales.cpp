#include "model/unequal_scales.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "layout/tensor_kinds.hpp"
#include "quant/decode_row.hpp"

namespace glu_ckpt {
namespace {

/// Each is a read of a few bytes, somewhere in a file.
constexpr std::size_t kMostPairs = 4096;

struct ScalePair {
  const ExpertBlock* block = nullptr;
  const Matrix* gate = nullptr;
  const Matrix* up = nullptr;
};

bool is_of_matrix(const Matrix& matrix) {
  return is_scale(matrix.kind) && matrix.grid.rows == 0 && matrix.grid.cols == 0 && matrix.grid.values == 1;
}

std::vector<ScalePair> pairs_of(const std::vector<ExpertBlock>& blocks, TensorKind kind) {
  std::vector<ScalePair> pairs;
  for (const ExpertBlock& block : blocks) {
    std::map<i64, ScalePair> by_expert;
    for (const Matrix& matrix : block.matrices) {
      if (matrix.kind != kind || !is_of_matrix(matrix)) continue;
      if (matrix.role == Role::Gate) by_expert[matrix.expert].gate = &matrix;
      if (matrix.role == Role::Up) by_expert[matrix.expert].up = &matrix;
    }
    for (const auto& [expert, pair] : by_expert)
      if (pair.gate != nullptr && pair.up != nullptr) pairs.push_back({&block, pair.gate, pair.up});
  }
  return pairs;
}

float read_scale(const Source& source, const Matrix& matrix) {
  std::array<std::byte, 4> bytes{};
  source.read(matrix.tensor, matrix.place.offset,
              std::span(bytes).first(static_cast<std::size_t>(matrix.element_bytes)));
  return scale_value(matrix.dtype, bytes.data());
}

std::string unequal_text(std::string_view kind, std::string_view name, std::size_t unequal, std::size_t looked_at,
                         const std::string& first) {
  return fmt::format(
      "gate and up have {}s ({}) of their own, unequal in {} of {} experts, first in {}. Programs that keep one for "
      "both "
      "compute something else, or round the weights anew",
      kind, name, unequal, looked_at, first);
}

}  // namespace

std::vector<std::string> unequal_scales(const Source& source, const std::vector<ExpertBlock>& blocks) {
  std::vector<std::string> sentences;
  for (const KindWords& words : kKindWords) {
    const std::vector<ScalePair> pairs = pairs_of(blocks, words.kind);
    const std::size_t step = pairs.size() / kMostPairs + 1;
    std::size_t looked_at = 0, unequal = 0;
    std::string first;
    for (std::size_t i = 0; i < pairs.size(); i += step, ++looked_at) {
      const ScalePair& pair = pairs[i];
      const float gate = read_scale(source, *pair.gate), up = read_scale(source, *pair.up);
      if (gate == up) continue;
      if (unequal++ == 0)
        first = fmt::format("layer {}, expert {}: {} and {}", layer_label(*pair.block), pair.gate->expert, gate, up);
    }
    if (unequal > 0) sentences.push_back(unequal_text(words.text, words.word, unequal, looked_at, first));
  }
  return sentences;
}

std::vector<std::string> unequal_scales_of_parts(const Source& source, const Quantization& found,
                                                 const std::vector<ExpertBlock>& blocks) {
  std::set<std::size_t> explained;
  for (const ExpertBlock& block : blocks)
    for (const Matrix& matrix : block.matrices)
      if (is_scale(matrix.kind)) explained.insert(matrix.tensor);
  std::size_t unequal = 0, looked_at = 0;
  std::string first, name, kind;
  for (const QuantizedTensor& weight : found.tensors) {
    const std::size_t number = weight.global.value_or(weight.scales);
    if (!weight.scales_of_parts || explained.contains(number) || looked_at >= kMostPairs) continue;
    const TensorRef& tensor = source.inventory().tensors[number];
    const i64 size = dtype_bits(tensor.dtype) / 8, matrices = std::min<i64>(weight.matrices, kMostPairs);
    std::vector<std::byte> bytes(static_cast<std::size_t>(2 * matrices * size));
    source.read(number, 0, bytes);
    for (i64 expert = 0; expert < matrices; ++expert, ++looked_at) {
      const float gate = scale_value(tensor.dtype, bytes.data() + 2 * expert * size);
      const float up = scale_value(tensor.dtype, bytes.data() + (2 * expert + 1) * size);
      if (gate == up || unequal++ > 0) continue;
      kind = weight.global ? "second scale" : "scale";
      name = tensor.name;
      first = fmt::format("expert {} of it: {} and {}", expert, gate, up);
    }
  }
  return unequal == 0 ? std::vector<std::string>() : std::vector{unequal_text(kind, name, unequal, looked_at, first)};
}

}  // namespace glu_ckpt
