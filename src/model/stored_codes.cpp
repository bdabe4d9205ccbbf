#include "model/stored_codes.hpp"

#include <algorithm>
#include <map>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "model/laid_out_source.hpp"
#include "model/locate_errors.hpp"
#include "model/source_hints.hpp"
#include "quant/check_codes.hpp"
#include "quant/decoded_source.hpp"
#include "quant/find_quantized.hpp"

namespace glu_ckpt {
namespace {

/// Returns nothing where it cannot be told what belongs together: that is moved as it is, or refused for what moves it.
std::optional<Quantization> known_quantization(const Checkpoint& checkpoint) {
  const Source& source = *checkpoint.source;
  try {
    return find_quantized(source.inventory(), quant_config_of(source, checkpoint.hints),
                          weight_axes(checkpoint.recognition.blocks));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

Quantization find_sound(const Source& source, const ModelHints& hints, const Recognition* model) {
  const Inventory& stored = source.inventory();
  Quantization found = find_quantized(stored, quant_config_of(source, hints),
                                      model == nullptr ? WeightAxes() : weight_axes(model->blocks));
  check_stated_shapes(source, found);
  if (model == nullptr) return found;
  std::vector<TensorRef> decoded;
  for (const QuantizedTensor& weight : found.tensors) decoded.push_back({weight.name, Dtype::BF16, weight.shape});
  if (const auto misfit = find_misfit(*model, decoded)) {
    const std::string& name = stored.tensors[found.tensors[misfit->tensor].weight].name;
    fail(ErrorCode::ModelShape, {{}, name}, "'{}' holds codes, and decoded {}", name, misfit->fault);
  }
  return found;
}

std::vector<std::string> quantized_formats(const Checkpoint& checkpoint) {
  const std::optional<Quantization> found = known_quantization(checkpoint);
  return found ? found->formats : std::vector<std::string>();
}

JudgedCodes judge_codes(const Source& source, const ModelHints& hints, const Recognition* model) {
  JudgedCodes judged;
  const auto has_codes = [](const TensorRef& tensor) { return holds_codes(tensor.dtype); };
  if (std::ranges::none_of(source.inventory().tensors, has_codes)) return judged;
  try {
    judged.found = locate_errors(
        source, [&] { return find_sound(source, hints, model); }, true);
  } catch (const Error& error) {
    judged.fault = error;
    const bool is_lost = error.code() == ErrorCode::ScaleMissing || error.code() == ErrorCode::ScaleOrphan;
    // Codes without scales, of which no configuration speaks, are moved as they are where the model is recognized.
    const bool needs_scales = model == nullptr || !quant_config_of(source, hints).method.empty();
    constexpr ErrorCode kStops[] = {ErrorCode::SizeMismatch, ErrorCode::ModelShape, ErrorCode::ConfigJson};
    judged.stops_all = std::ranges::find(kStops, error.code()) != std::end(kStops) || (is_lost && needs_scales);
  }
  return judged;
}

void find_parts(const Source& source, const SourceAnswers& answers, Quantization& found) {
  if (std::ranges::none_of(found.tensors, &QuantizedTensor::scales_of_parts)) return;
  struct Parts {
    i64 rows = 0;
    bool in_out = false;
  };
  std::map<std::string_view, Parts> parts;
  const Inventory decoded = decoded_inventory(source.inventory(), found, Dtype::BF16);
  const Recognition model =
      recognize_model(decoded, hints_of(source, answers), source.record(), answers_about(source, answers));
  for (const ExpertBlock& block : model.blocks) {
    const bool interleaved = block.glu.kind == Glu::Kind::Interleaved;
    if (!interleaved && block.glu.kind != Glu::Kind::Contiguous) continue;
    for (const Matrix& matrix : block.matrices)
      if (matrix.role == Role::Gate && matrix.kind == TensorKind::Weight)
        parts[decoded.tensors[matrix.tensor].name] = {interleaved ? block.glu.block_rows : matrix.rows,
                                                      block.axes == Axes::InOut};
  }
  for (QuantizedTensor& weight : found.tensors) {
    const auto known = parts.find(weight.name);
    if (!weight.scales_of_parts || known == parts.end()) continue;
    weight.part_rows = known->second.rows;
    weight.in_out = known->second.in_out && !weight.transposed;
  }
}

SharedScales share_second_scales(Checkpoint& checkpoint) {
  std::map<std::size_t, SecondScales> by_gate;
  for (const ExpertBlock& block : checkpoint.recognition.blocks) {
    if (block.glu.kind != Glu::Kind::Split || block.is_optimizer_state()) continue;
    std::map<i64, SecondScales> by_expert;
    for (const Matrix& matrix : block.matrices) {
      if (matrix.kind != TensorKind::SecondScale && matrix.kind != TensorKind::GlobalScale) continue;
      if (matrix.role == Role::Gate) by_expert[matrix.expert].gate = matrix.tensor;
      if (matrix.role == Role::Up) by_expert[matrix.expert].up = matrix.tensor;
    }
    for (const auto& [expert, pair] : by_expert) by_gate.emplace(pair.gate, pair);
  }
  if (by_gate.empty()) return {};
  std::vector<SecondScales> pairs;
  pairs.reserve(by_gate.size());
  for (const auto& [gate, pair] : by_gate) pairs.push_back(pair);
  const Source& stored = *checkpoint.source;
  std::optional<Quantization> found = known_quantization(checkpoint);
  if (!found) return {};
  return locate_errors(stored, [&] { return share_second_scales(checkpoint.source, std::move(*found), pairs); });
}

}  // namespace glu_ckpt
