#include <algorithm>
#include <set>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "model/known_orders.hpp"
#include "model/open_checkpoint.hpp"
#include "model/saved_arguments.hpp"
#include "model/source_hints.hpp"
#include "model/stored_model.hpp"
#include "model/unequal_scales.hpp"
#include "quant/decoded_source.hpp"

namespace glu_ckpt {
namespace {

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

/// Says whether a naming explains the model that the codes decode to. Stored codes may have shapes that none does.
bool decodes_to_model(const Source& source, const Quantization& found, const SourceAnswers& answers) {
  if (found.tensors.empty()) return false;
  try {
    const Inventory decoded = decoded_inventory(source.inventory(), found, Dtype::BF16);
    return !recognize_model(decoded, hints_of(source, answers), source.record(), answers).blocks.empty();
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

}  // namespace

Inspection inspect(const std::filesystem::path& path, const SourceAnswers& answers) {
  Inspection inspection;
  inspection.source = open_as(path, answers);
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
  inspection.scales = scale_texts(inspection.source->inventory(), found);
  if (codes.fault) inspection.problems.emplace_back(codes.fault->what());
  if (codes.stops_all) inspection.fault = codes.fault;
  try {
    if (judged.unrecognized) throw Error(*judged.unrecognized);
    const ModelHints& hints = judged.hints;
    inspection.recognition = std::move(judged.model);
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
    inspection.loads_in = loads_in(*inspection.source, hints, *inspection.recognition, !inspection.quantized.empty());
    tell_stale_quantization(answers, inspection);
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
