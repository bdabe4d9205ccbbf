#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "core/float_rows.hpp"
#include "families/architecture.hpp"
#include "families/config_fields.hpp"
#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/layout.hpp"
#include "glu_ckpt/model.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "layout/tensor_kinds.hpp"
#include "model/adapter_view.hpp"
#include "model/known_orders.hpp"
#include "model/laid_out_source.hpp"
#include "model/locate_errors.hpp"
#include "model/open_checkpoint.hpp"
#include "model/saved_arguments.hpp"
#include "model/source_hints.hpp"
#include "model/stored_model.hpp"
#include "quant/decode_row.hpp"
#include "quant/decoded_source.hpp"
#include "quant/find_quantized.hpp"
#include "quant/quantized_tensor.hpp"

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

/// Returns a sentence for each kind of such scales that are not equal, with how many experts and the first one. Reads
/// the scales of at most 4096 experts, spread over the model.
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

/// Does the same for gate and up in one tensor whose scales no naming explains: those that are not in `blocks`.
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

/// Says which weights a scale without rows and columns is for.
std::string_view matrix_text(const QuantizedTensor& weight) {
  return weight.one_for_all ? "all matrices of a tensor" : "each matrix";
}

/// The dtypes and grids of the scales, each once.
std::vector<std::string> scale_texts(const Inventory& inventory, const Quantization& found) {
  std::set<std::string> texts;
  for (const QuantizedTensor& weight : found.tensors) {
    std::string text =
        fmt::format("{}, one for {}", dtype_name(inventory.tensors[weight.scales].dtype), cell_text(weight));
    if (weight.global)
      text += fmt::format(", and {}, one for {}", dtype_name(inventory.tensors[*weight.global].dtype),
                          weight.scales_of_parts ? "each gate and up" : matrix_text(weight));
    texts.insert(std::move(text));
  }
  return {texts.begin(), texts.end()};
}

/// The parts of the model whose weights are quantized, by the roles of what they decode to.
std::vector<std::string> parts_of_codes(const Source& source, const Quantization& found, const SourceAnswers& answers) {
  if (found.tensors.empty()) return {};
  try {
    const Inventory decoded = decoded_inventory(source.inventory(), found, Dtype::BF16);
    const Recognition model =
        recognize_model(decoded, hints_of(source, answers), source.record(), answers_about(source, answers));
    std::map<std::string_view, std::string_view> parts;
    for (const ExpertBlock& block : model.blocks)
      for (const Matrix& matrix : block.matrices)
        parts.emplace(decoded.tensors[matrix.tensor].name,
                      block.set == ExpertSet::Routed ? "routed experts" : "shared experts");
    for (const DenseMatrix& dense : model.dense) {
      const std::string_view role = to_string(dense.role);
      parts.emplace(decoded.tensors[dense.matrix.tensor].name, role.substr(0, role.find('/')));
    }
    std::set<std::string> names;
    for (const QuantizedTensor& weight : found.tensors)
      if (const auto part = parts.find(weight.name); part != parts.end())
        names.emplace(part->second);
      else
        names.emplace("others");
    return {names.begin(), names.end()};
  } catch (const Error&) {
    return {};  // What is wrong with the codes is a problem of its own.
  }
}

/// Says whether a naming explains the model that the codes decode to. Stored codes may have shapes that none does.
bool decodes_to_model(const Source& source, const Quantization& found, const SourceAnswers& answers) {
  if (found.tensors.empty()) return false;
  try {
    const Inventory decoded = decoded_inventory(source.inventory(), found, Dtype::BF16);
    return !recognize_model(decoded, hints_of(source, answers), source.record(), answers_about(source, answers))
                .blocks.empty();
  } catch (const Error&) {
    return false;
  }
}

/// Trainers do not look at a quantization_config, but what is made of their checkpoints would have it.
void tell_stale_quantization(const SourceAnswers& answers, Inspection& inspection) {
  const std::string stale = stale_quantization(*inspection.source, answers);
  if (stale.empty()) return;
  const std::string text = fmt::format("{} says that weights are quantized, and none is", stale);
  if (!inspection.recognition->layout.naming.starts_with("hf")) {
    inspection.warnings.push_back(text + ": `convert` leaves it out");
    return;
  }
  inspection.problems.push_back(
      text +
      ": programs would look for codes and scales that are not there. Remove it, or let `convert --decode bf16` "
      "write the model without it");
  inspection.loads_in = {{}, text};
}

/// Counts what is no optimizer's and no copy; none where codes are left that nobody knows the weights of.
std::optional<i64> count_parameters(const Source& source, const Quantization& found, const Recognition& model) {
  const Inventory& stored = source.inventory();
  std::set<std::string> copies;
  for (const TensorCopy& copy : model.copies) copies.insert(stored.tensors[copy.tensor].name);
  const bool is_quantized = !found.tensors.empty();
  Inventory decoded;
  try {
    if (is_quantized) decoded = decoded_inventory(stored, found, Dtype::BF16);
  } catch (const Error&) {
    return std::nullopt;  // What is wrong with the codes is a problem of its own.
  }
  i64 count = 0;
  for (const TensorRef& tensor : (is_quantized ? decoded : stored).tensors) {
    if (is_optimizer_tensor(tensor.name) || copies.contains(tensor.name)) continue;
    if (tensor.shape.size() > 1 && holds_codes(tensor.dtype)) return std::nullopt;
    if (is_float(tensor.dtype)) count += tensor.bytes * 8 / dtype_bits(tensor.dtype);
  }
  return count;
}

/// The weights of routed experts; none where their sizes differ within a layer.
std::optional<i64> count_routed(const Recognition& model) {
  i64 count = 0;
  for (const ExpertBlock& block : model.blocks) {
    if (block.set != ExpertSet::Routed || block.is_optimizer_state()) continue;
    if (block.intermediate_size < 0) return std::nullopt;
    const i64 matrices = block.glu.kind == Glu::Kind::None ? 2 : 3;
    count += block.num_experts * matrices * block.hidden_size * block.intermediate_size;
  }
  return count;
}

std::string_view attention_name(Attention attention, const Architecture& architecture) {
  switch (attention) {
    case Attention::Latent: return "multi-head latent";
    case Attention::Delta: return "gated delta net";
    case Attention::Mamba: return "Mamba-2";
    case Attention::None: return "none";
    case Attention::Grouped: break;
  }
  if (architecture.kv_heads == architecture.heads) return "multi-head";
  return architecture.kv_heads == 1 ? "multi-query" : "grouped-query";
}

/// "grouped-query"; of several kinds "36 gated delta net, 12 grouped-query". Layers without are left out.
std::string attention_text(const Architecture& architecture) {
  std::map<std::string_view, i64> layers;
  for (const LayerKind& kind : architecture.kinds)
    if (kind.attention != Attention::None) ++layers[attention_name(kind.attention, architecture)];
  if (layers.size() == 1) return std::string(layers.begin()->first);
  std::string text;
  for (const auto& [name, count] : layers) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  return text;
}

/// How large the model is: what people ask first of a checkpoint. `found` is what is quantized in the source; `hints`
/// has its configuration.
ModelSize model_size(const Source& source, const Quantization& found, const ModelHints& hints,
                     const Recognition& model) {
  ModelSize size;
  size.parameters = count_parameters(source, found, model);
  if (const Architecture* const architecture = model.architecture.get(); architecture != nullptr) {
    size.layers = architecture->layers;
    size.vocabulary = architecture->extent(Dim::Vocab);
    size.hidden = architecture->extent(Dim::Hidden);
    size.dense_width = architecture->extent(Dim::DenseWidth);
    size.heads = architecture->heads;
    size.kv_heads = architecture->kv_heads;
    size.attention = attention_text(*architecture);
    size.tied = architecture->tied;
  }
  const ConfigFields config(hints.config);
  size.context = config.integer({"max_position_embeddings"}).value_or(0);
  if (model.blocks.empty()) return size;
  size.experts_per_token = config.integer({"num_experts_per_tok", "moe_topk", "moe_k"}).value_or(0);
  const i64 experts = hints.num_experts.value_or(0);
  const std::optional<i64> routed = count_routed(model);
  if (!size.parameters || !routed || experts <= 0 || size.experts_per_token <= 0 || size.experts_per_token > experts)
    return size;
  const i64 idle = *routed / experts * (experts - size.experts_per_token);
  if (idle < *size.parameters) size.active_parameters = *size.parameters - idle;
  return size;
}

}  // namespace

Inspection inspect(const std::filesystem::path& path, const SourceAnswers& asked) {
  SourceAnswers answers = asked;
  answers.adapter_layout = "stored";
  Inspection inspection;
  inspection.source = open_as(open_source(path), answers);
  if (const auto foreign = inspection.source->record().find("foreign_order");
      foreign != inspection.source->record().end())
    inspection.warnings.push_back("the checkpoint may load and compute something else. " + foreign->second);
  inspection.problems = dangling_texts(*inspection.source);
  JudgedSource judged = judge_source(*inspection.source, answers);
  const JudgedCodes& codes = judged.codes;
  for (std::string& text : bare_code_texts(inspection.source->inventory(), judged.model.value_or(Recognition())))
    inspection.problems.push_back(std::move(text));
  const Quantization& found = codes.found;
  inspection.quantized = found.formats;
  inspection.quantized_parts = parts_of_codes(*inspection.source, found, answers);
  inspection.scales = scale_texts(inspection.source->inventory(), found);
  if (codes.fault) inspection.problems.emplace_back(codes.fault->what());
  if (codes.stops_all) inspection.fault = codes.fault;
  try {
    if (judged.unrecognized) throw Error(*judged.unrecognized);
    const ModelHints& hints = judged.hints;
    inspection.recognition = std::move(judged.model);
    if (inspection.recognition->is_adapter) {
      try {
        inspection.adapter =
            locate_errors(*inspection.source, [&] { return summarize_adapter(*inspection.source, answers); });
        inspection.loads_in = adapter_loaders(*inspection.source, answers);
        for (std::string& text : target_texts(*inspection.source)) inspection.warnings.push_back(std::move(text));
      } catch (const Error& error) {
        // What it is can be said of one that cannot be read, too.
        inspection.problems.emplace_back(error.what());
        const std::string what = other_model_text(*inspection.source);
        inspection.loads_in = {{}, what.empty() ? "it cannot be read as an adapter" : what, true};
      }
      return inspection;
    }
    for (const std::string& problem : inspection.recognition->problems) inspection.problems.push_back(problem);
    for (std::string& text : contradiction_texts(hints, *inspection.recognition, inspection.source->inventory()))
      inspection.warnings.push_back(std::move(text));
    for (std::string& text : optimizer_part_texts(*inspection.source)) inspection.problems.push_back(std::move(text));
    for (std::string& text : unread_argument_texts(*inspection.source, hints))
      inspection.problems.push_back(std::move(text));
    for (std::string& text : unequal_scales(*inspection.source, inspection.recognition->blocks))
      inspection.warnings.push_back(std::move(text));
    if (const std::string text = lone_shard_text(*inspection.source); !text.empty())
      inspection.problems.push_back(text);
    for (std::string& text : missing_answer_texts(*inspection.recognition, answers.option_prefix))
      inspection.problems.push_back(std::move(text));
    for (std::string& text : flaw_texts(*inspection.source, hints, *inspection.recognition))
      inspection.problems.push_back(std::move(text));
    if (std::vector<std::string> texts = missing_tower_texts(*inspection.recognition);
        !texts.empty() && is_hub_form(*inspection.recognition))
      std::ranges::move(texts, std::back_inserter(inspection.problems));
    inspection.loads_in = loads_in(*inspection.source, hints, *inspection.recognition, !inspection.quantized.empty());
    tell_stale_quantization(answers, inspection);
    inspection.size = model_size(*inspection.source, found, hints, *inspection.recognition);
  } catch (const Error& error) {
    // What recognition says of broken scales follows from their fault.
    if (!codes.stops_all) inspection.problems.emplace_back(error.what());
    if (codes.stops_all || !decodes_to_model(*inspection.source, found, answers))
      inspection.fault = codes.stops_all ? *codes.fault : error;
    else
      inspection.problems.back() +=
          ". As they are stored they cannot be moved; `glu-ckpt inspect --decode bf16` shows their layout";
  }
  const bool contradicted = codes.fault && codes.fault->code() == ErrorCode::QuantConfigContradicts;
  if (codes.stops_all || contradicted) inspection.loads_in = {{}, codes.fault->what()};
  const std::vector<ExpertBlock> none;
  for (std::string& text : unequal_scales_of_parts(*inspection.source, found,
                                                   inspection.recognition ? inspection.recognition->blocks : none))
    inspection.warnings.push_back(std::move(text));
  return inspection;
}

}  // namespace glu_ckpt
