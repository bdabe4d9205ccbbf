#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "families/architecture.hpp"
#include "layout/bare_codes.hpp"
#include "model/laid_out_source.hpp"
#include "model/source_hints.hpp"
#include "model/source_steps.hpp"
#include "model/stored_codes.hpp"
#include "quant/encoded_source.hpp"

namespace glu_ckpt {
namespace {

/// The part of the model whose errors are summed, for a role that servers read as codes; empty for others.
std::string_view part_of(DenseRole role) {
  switch (role) {
    case DenseRole::Q:
    case DenseRole::QGate:
    case DenseRole::K:
    case DenseRole::V:
    case DenseRole::AttentionOut:
    case DenseRole::LatentQ:
    case DenseRole::QDown:
    case DenseRole::QUp:
    case DenseRole::KvDown:
    case DenseRole::KvUp:
    case DenseRole::IndexerQ:
    case DenseRole::IndexerK:
    case DenseRole::DeltaQ:
    case DenseRole::DeltaK:
    case DenseRole::DeltaV:
    case DenseRole::DeltaZ:
    case DenseRole::DeltaOut:
    case DenseRole::MambaZ:
    case DenseRole::MambaX:
    case DenseRole::MambaB:
    case DenseRole::MambaC:
    case DenseRole::MambaTime:
    case DenseRole::MambaOut: return "attention";
    case DenseRole::MlpGate:
    case DenseRole::MlpUp:
    case DenseRole::MlpDown: return "dense MLP";
    case DenseRole::ExpertsDown:
    case DenseRole::ExpertsUp: return "experts' way in and out";
    default: return {};
  }
}

bool is_role_of_gate(DenseRole role) { return role == DenseRole::MlpGate || role == DenseRole::MlpUp; }

/// Collects the weights of a recognized model.
class WeightChooser {
 public:
  WeightChooser(const Source& source, const Recognition& model, const Encoder& encoder)
      : tensors_(source.inventory().tensors), model_(model), encoder_(encoder) {}

  std::vector<EncodedWeight> choose() {
    for (const ExpertBlock& block : model_.blocks) add_experts(block);
    if (encoder_.row.codes != TensorKind::Blocks) add_others();
    std::vector<EncodedWeight> weights;
    for (auto& [tensor, weight] : found_) {
      const TensorRef& stored = tensors_[tensor];
      check_encodable(encoder_, stored, weight.turned);
      if (encodes_shape(encoder_, stored)) weights.push_back(std::move(weight));
    }
    if (weights.empty())
      fail(ErrorCode::NotSupported, {}, "--encode {}: the model has no weight that becomes codes", encoder_.row.word);
    return weights;
  }

 private:
  /// ModelOpt leaves multi-token prediction as it is.
  bool leaves(std::string_view stack) const { return encoder_.row.method == "modelopt" && stack.starts_with("mtp"); }

  /// Returns whether codes have other axes than the weight. Blocks of as many rows as columns are turned with their
  /// weight; other cells lie along the inputs.
  bool turns(const ExpertBlock& block, const Matrix& matrix) const {
    if (block.axes == Axes::OutIn || encoder_.row.cell_rows == encoder_.row.cell_cols) return false;
    if (encoder_.row.codes != TensorKind::Weight) return true;
    const std::string& name = tensors_[matrix.tensor].name;
    fail(ErrorCode::NotSupported, {{}, name},
         "'{}': its naming stores experts as [in, out], where the weights that share a scale of {} would not lie along "
         "a row, and no reader has that; formats with 128 x 128 blocks, and of packed codes, are for it",
         name, encoder_.row.word);
  }

  void add_experts(const ExpertBlock& block) {
    if (block.is_optimizer_state() || leaves(block.stack)) return;
    std::map<i64, std::vector<std::size_t>> gate_and_up;
    for (const Matrix& matrix : block.matrices) {
      if (matrix.kind != TensorKind::Weight) continue;
      found_[matrix.tensor] = {matrix.tensor,
                               block.set == ExpertSet::Shared ? "shared experts" : "routed experts",
                               {},
                               turns(block, matrix)};
      if (matrix.role != Role::Down) gate_and_up[matrix.expert].push_back(matrix.tensor);
    }
    for (const auto& [expert, pair] : gate_and_up) share(pair);
  }

  void add_others() {
    std::map<std::pair<std::string_view, i64>, std::vector<std::size_t>> gate_and_up;
    std::map<std::size_t, bool> left;
    for (const DenseMatrix& matrix : model_.dense)
      if (matrix.matrix.kind == TensorKind::Weight && part_of(matrix.role).empty()) left[matrix.matrix.tensor] = true;
    for (const DenseMatrix& matrix : model_.dense) {
      const std::size_t tensor = matrix.matrix.tensor;
      // What is stored together with a matrix that stays a number stays one, too.
      if (matrix.matrix.kind != TensorKind::Weight || left.contains(tensor) || leaves(matrix.stack)) continue;
      found_[tensor] = {tensor, std::string(part_of(matrix.role)), {}, false};
      if (is_role_of_gate(matrix.role)) gate_and_up[{matrix.stack, matrix.layer}].push_back(tensor);
    }
    for (const auto& [layer, pair] : gate_and_up) share(pair);
  }

  void share(const std::vector<std::size_t>& tensors) {
    for (const std::size_t one : tensors)
      for (const std::size_t other : tensors)
        if (other != one) found_.at(one).shares_with.push_back(other);
  }

  const std::vector<TensorRef>& tensors_;
  const Recognition& model_;
  const Encoder& encoder_;
  std::map<std::size_t, EncodedWeight> found_;
};

/// Returns whether all scales are powers of two.
bool are_powers(const Source& source, std::size_t tensor) {
  const TensorRef& scales = source.inventory().tensors[tensor];
  if (scales.dtype == Dtype::F8_E8M0) return true;
  std::vector<std::byte> bytes(static_cast<std::size_t>(scales.bytes));
  source.read(tensor, 0, bytes);
  const auto all = [&]<typename Bits>(Bits fraction) {
    for (std::size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
      Bits bits = 0;
      std::memcpy(&bits, bytes.data() + at, sizeof(bits));
      if ((bits & fraction) != 0) return false;
    }
    return true;
  };
  if (scales.dtype == Dtype::F32) return all(u32{0x7f'ffff});
  return all(static_cast<std::uint16_t>(scales.dtype == Dtype::BF16 ? 0x7f : 0x3ff));
}

/// Returns what a weight has that codes of the encoder have not: "scales that are no powers of two"; nothing where it
/// is what the encoder's format is.
std::string_view other_part(const Source& source, const QuantizedTensor& weight, const Encoder& encoder) {
  const EncoderRow& row = encoder.row;
  const i64 cols = row.cell_cols == 0 ? weight.cols : row.cell_cols;
  if (weight.codes != encoder.codes) return "other codes";
  if (weight.cell_rows > row.cell_rows || weight.cell_cols != cols) return "scales for other blocks of weights";
  if (weight.zeros) return "zero points";
  if (weight.groups) return "columns in another order";
  const bool is_float = dtype_bits(row.scale_dtype) >= 16;
  const bool in_powers = row.rule == ScaleRule::DeepGemmPower || row.rule == ScaleRule::TransformersPower;
  if (in_powers && !are_powers(source, weight.scales)) return "scales that are no powers of two";
  if (is_float && !in_powers && source.inventory().tensors[weight.scales].dtype == Dtype::F8_E8M0)
    return "powers of two for scales";
  return {};
}

/// The first weight that is not such codes, and why; none where all are.
std::optional<std::pair<std::size_t, std::string_view>> other_codes(const Source& source, const Quantization& found,
                                                                    const Encoder& encoder) {
  for (const QuantizedTensor& weight : found.tensors)
    if (const std::string_view why = other_part(source, weight, encoder); !why.empty())
      return std::pair{weight.weight, why};
  return std::nullopt;
}

/// Returns whether the weights are such codes already. Throws NotSupported where they are others.
bool is_encoded(const Source& source, const ModelHints& hints, const Recognition& model, const Encoder& encoder) {
  const auto has_codes = [](const TensorRef& tensor) { return holds_codes(tensor.dtype); };
  if (std::ranges::none_of(source.inventory().tensors, has_codes)) return false;
  const Quantization found = find_sound(source, hints, &model);
  if (found.tensors.empty()) return false;
  if (const auto other = other_codes(source, found, encoder)) {
    const std::string& name = source.inventory().tensors[other->first].name;
    fail(ErrorCode::NotSupported, {{}, name},
         "'{}' holds codes already, with {}, and --encode {} makes others of numbers; --decode bf16 beside it makes "
         "numbers of them first",
         name, other->second, encoder.row.word);
  }
  return true;
}

/// A family may have a form of its own.
void take_own_form(Encoder& encoder, const Recognition& model) {
  if (encoder.codes != Codes::E2m1 || has_second_scale(encoder.row) || !model.architecture->family->mxfp4_blocks)
    return;
  encoder.row.codes = TensorKind::Blocks;
  encoder.row.scales = TensorKind::Scales;
  encoder.row.method = encoder.row.word;
}

}  // namespace

bool has_codes_of(const Source& source, const Quantization& found, const SourceAnswers& answers) {
  // Codes do not tell the program that made them, nor whether all weights that it encodes were encoded.
  const auto encoded = source.record().find("encoded_as");
  if (encoded == source.record().end() || encoded->second != answers.encode) return false;
  const auto encoder = source.record().find("encoder");
  const bool is_named = !answers.encode_as.empty();
  if (is_named && (encoder == source.record().end() || encoder->second != answers.encode_as)) return false;
  return !found.tensors.empty() && !other_codes(source, found, find_encoder(answers.encode, answers.encode_as));
}

void encode_weights(std::unique_ptr<Source>& source, const SourceAnswers& answers) {
  Encoder encoder = find_encoder(answers.encode, answers.encode_as);
  const ModelHints hints = hints_of(*source, answers);
  Recognition model = recognize_source(*source, hints, answers);
  if (is_encoded(*source, hints, model, encoder)) return;
  if (model.architecture == nullptr)
    fail_without_model(*source, hints, model, answers,
                       fmt::format("--encode {} would have to know which matrices its servers leave as they are, and",
                                   encoder.row.word));
  take_own_form(encoder, model);
  lay_out_apart(source, hints, model);
  model = recognize_source(*source, hints_of(*source, answers), answers);
  std::vector<EncodedWeight> weights = WeightChooser(*source, model, encoder).choose();
  encode_source(source, encoder, std::move(weights), answers.decode_plainly ? EncodePath::Plain : EncodePath::Fast);
}

}  // namespace glu_ckpt
