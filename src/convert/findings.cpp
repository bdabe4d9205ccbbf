#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "arch/trained_config.hpp"
#include "convert/consume.hpp"
#include "convert/judge.hpp"
#include "families/architecture.hpp"
#include "format/check_apart.hpp"
#include "format/extras.hpp"
#include "format/model_config.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_names.hpp"
#include "model/adapter_view.hpp"
#include "model/saved_arguments.hpp"
#include "model/source_hints.hpp"
#include "model/source_steps.hpp"
#include "model/stage.hpp"
#include "model/stored_model.hpp"
#include "quant/quant_config.hpp"
#include "quant/quantization_text.hpp"

namespace glu_ckpt {
namespace {

std::string finer_scales_note(const Conversion& conversion) {
  const auto& [rows, added_bytes] = conversion.finer_scales;
  const QuantConfig config = read_quant_config(with_block_rows(conversion.source.hints.config, rows));
  const std::string said =
      block_rows_of(config) == rows
          ? fmt::format("{} in config.json says so; few programs read blocks other than 128 x 128",
                        block_rows_field(config))
          : std::string(
                "There is no quantization_config to say so: programs take them for blocks of 128 x 128 unless it is "
                "written, while glu-ckpt reads it from its record");
  return fmt::format(
      "the order of gate and up would cut the blocks of FP8 scales, so each scale is written for blocks of {} rows: {} "
      "bytes more. {}",
      rows, added_bytes, said);
}

/// Says of a config.json that nobody wrote what it is made of.
std::string made_config_note(const Conversion& conversion) {
  const ModelHints& hints = conversion.source.hints;
  std::string text = fmt::format(
      "config.json is made from the arguments that the trainer saved, for a model of type '{}'. What they do not say, "
      "such as the ids of special tokens, is not in it, so that programs take the family's defaults; there are no "
      "tokenizer files",
      hints.model_type);
  if (!has_vocabulary(hints.trained.args))
    text += ". They do not say the size of the vocabulary, so vocab_size counts the embedding's rows, padding included";
  return text;
}

/// Says of a config.json that is no file of the source where it is from.
std::string kept_config_note(const Conversion& conversion) {
  const bool is_recorded = conversion.source.source->hints().config.empty();
  return fmt::format("config.json is {}", is_recorded ? "the one that the source's record holds"
                                                      : "the one that lies beside the source's file");
}

/// A tensor of multi-token prediction that the family's rows do not know, by its name in the hub's form; empty where
/// there is none.
std::string unknown_mtp_tensor(const Inventory& inventory, const Recognition& model) {
  for (const std::size_t index : model.others) {
    std::string_view name = inventory.tensors[index].name;
    if (name.starts_with(kUnknownPrefix)) name.remove_prefix(kUnknownPrefix.size());
    if (name.starts_with("mtp.")) return std::string(name);
  }
  return {};
}

/// Hubs have models without MTP, and transformers saves none: the rest is whole. K-EXAONE's is there, and comes back
/// whole, but no argument makes it. Empty where nothing is missing.
std::string missing_mtp_text(const Conversion& conversion, bool to_hub) {
  const Recognition& model = conversion.source.recognition;
  if (!lacks_promised_mtp(model)) return {};
  const Architecture* const architecture = model.architecture.get();
  const std::string promise = fmt::format("config.json promises {} MTP layer{} ({})", architecture->mtp_layers,
                                          architecture->mtp_layers == 1 ? "" : "s", architecture->mtp_field);
  const std::string unknown = unknown_mtp_tensor(conversion.source.source->inventory(), model);
  if (unknown.empty())
    return promise +
           ", but the checkpoint has no tensor of one: the output has none, and a program that asks for it will not "
           "find it";
  if (to_hub) return {};
  return fmt::format(
      "{}, whose tensors, such as '{}', no map knows: they travel beside the model, and no argument makes such a layer",
      promise, unknown);
}

/// A model that Megatron-Core trained may lack a tensor that its family has. Empty where nothing is missing.
std::string missing_bias_text(const Recognition& model) {
  const Architecture* const architecture = model.architecture.get();
  if (architecture == nullptr || !architecture->family->zero_correction_bias) return {};
  const auto is_bias = [](const DenseMatrix& matrix) { return matrix.role == DenseRole::CorrectionBias; };
  if (std::ranges::any_of(model.dense, is_bias)) return {};
  return fmt::format(
      "models of type {} have a correction bias in each router, of which Megatron-Core has none after a softmax: the "
      "output has none, transformers reports it as missing and starts it at zero, which chooses the same experts",
      architecture->model_type);
}

/// Says where rows of gate and up are put in another order that nobody asked for by --glu or --shared-glu: the target
/// has it.
std::vector<std::string> turned_orders(const Conversion& conversion) {
  const LayoutAnswers &from = conversion.plan.from, &to = conversion.plan.to;
  const auto is_fused = [](const Glu& glu) {
    return glu.kind == Glu::Kind::Contiguous || glu.kind == Glu::Kind::Interleaved;
  };
  std::vector<std::string> texts;
  const auto compare = [&](const Glu& before, const Glu& after, const std::optional<Glu>& asked,
                           std::string_view rows) {
    if (!asked && is_fused(before) && is_fused(after) && before != after)
      texts.push_back(
          fmt::format("gate and up rows of {} are {} in the source, and {} in the output, as its program "
                      "reads them",
                      rows, to_string(before), to_string(after)));
  };
  const TargetAnswers& asked = conversion.options.to;
  compare(from.glu, to.glu, asked.glu, from.is_dense() ? "the MLP" : "the routed experts");
  if (from.shared_glu && to.shared_glu)
    compare(*from.shared_glu, *to.shared_glu, asked.shared_glu, "the shared expert");
  return texts;
}

/// Says what of a trainer's run goes along into the hub's form, where nothing reads it; empty where nothing does.
std::string travelling_text(const Conversion& conversion) {
  const auto& [source, model, hints] = conversion.source;
  const Target& target = conversion.target;
  const bool leaves_trainer = source->format() != Format::Safetensors && target.format == Format::Safetensors;
  if (!leaves_trainer || conversion.plan.to.naming == conversion.plan.from.naming) return {};
  std::vector<std::string> names;
  for (const ExtraFile& file : target.extra_files)
    if (format_of_name(file.name) == Format::Torch) names.push_back(file.name);
  if (needs_extras(target.structure, target.format))
    names.push_back(fmt::format("what else is no tensor ({})", kExtrasFileName));
  if (names.empty()) return {};
  const std::string last = names.back();
  names.pop_back();
  return fmt::format(
      "{}{}{} of the run travel along for the way back to its trainer; programs that load the output do not read them",
      fmt::join(names, ", "), names.empty() ? "" : " and ", last);
}

std::vector<std::string> notes_of(const Conversion& conversion) {
  const Source& source = *conversion.source.source;
  std::vector<std::string> notes;
  const std::string stale = stale_quantization(source, conversion.options.from);
  if (!stale.empty())
    notes.push_back(fmt::format("{} says that weights are quantized, and none is: the output does not have it", stale));
  if (const CheckpointInfo& info = source.info(); !info.decoded_weights.empty())
    notes.push_back(fmt::format("{} quantized weights are decoded ({}), as {} decodes them",
                                info.decoded_weights.size(), info.record.at("decoded_from"),
                                info.record.at("decoded_as")));
  if (!conversion.options.from.merge.empty())
    notes.push_back(fmt::format("the adapter '{}' is merged ({}): the output has other weights than the source",
                                source.record().at("merged"), source.record().at("merged_as")));
  for (const std::string& filled : source.info().filled) notes.push_back("filled: " + filled);
  if (asks_for_part(conversion.options.from))
    notes.push_back(source.record().contains("part")
                        ? fmt::format("the output is a part of the model: {}", source.record().at("part"))
                        : "the output is the whole model: the layers asked for are all that there are");
  if (const SourceAnswers& from = conversion.options.from; from.pad_experts > 0 || from.unpad) {
    const i64 width = conversion.source.recognition.architecture->expert_width;
    const i64 before = recorded_width_before_padding(source.record());
    notes.push_back(before > 0 && before < width
                        ? fmt::format("experts are {} wide, padded with zeros from {}", width, before)
                        : fmt::format("experts are {} wide, without padding", width));
  }
  if (const std::string& rules = conversion.options.from.dtypes; !rules.empty()) {
    const auto rounded = source.record().find("rounded");
    notes.push_back(fmt::format("tensors are cast ({}): {}", rules,
                                rounded == source.record().end() ? "no element changes" : rounded->second));
  }
  if (const Record& record = source.record(); source.info().encoded_weights > 0)
    notes.push_back(fmt::format("{} weights are rounded to {} as {} encodes them: {}", source.info().encoded_weights,
                                record.at("encoded_as"), record.at("encoder"), record.at("encode_error")));
  std::ranges::move(turned_orders(conversion), std::back_inserter(notes));
  if (conversion.finer_scales.rows > 0) notes.push_back(finer_scales_note(conversion));
  if (conversion.second_scales.pairs > 0)
    notes.push_back(fmt::format(
        "gate and up become one tensor, and in {} expert{} their second scales (NVFP4) differ by powers of two: they "
        "become one, and block scales are multiplied by powers of two, all exactly. The decoded weights stay as they "
        "are; the way back keeps the one scale",
        conversion.second_scales.pairs, conversion.second_scales.pairs == 1 ? "" : "s"));
  if (const std::string& why = conversion.second_scales.why_none; !why.empty())
    notes.push_back(fmt::format(
        "gate and up become one tensor and keep a second scale (NVFP4) each, for one would not be exact: {}. "
        "Programs that read one scale for both compute something else",
        why));
  if (!conversion.target.config.name.empty())
    notes.push_back(conversion.source.hints.config_is_made ? made_config_note(conversion)
                                                           : kept_config_note(conversion));
  if (const auto& left_out = conversion.source.recognition.dropped; !left_out.empty())
    notes.push_back(fmt::format("{} tensors of the optimizer are left out", left_out.size()));
  if (std::string text = travelling_text(conversion); !text.empty()) notes.push_back(std::move(text));
  for (const std::string& name : source.left_out())
    notes.push_back(fmt::format("{} is not part of the checkpoint and is left behind", name));
  return notes;
}

// ---- what loads the output --------------------------------------------------------------------

StoredExperts written_as(const ExpertBlock& block, const WrittenExperts& written) {
  StoredExperts stored = stored_as(block);
  stored.experts = written.experts;
  if (stored.bias_experts) stored.bias_experts = written.bias_experts;
  stored.fused = written.fused;
  stored.glu = written.glu;
  return stored;
}

/// Returns whether the output has names that transformers has in memory.
bool keeps_memory_names(const Conversion& conversion) {
  const auto& [source, model, hints] = conversion.source;
  return model.in_memory &&
         (model.model_names.empty() ||
          std::ranges::find(conversion.plan.outputs, source->inventory().tensors[model.model_names.begin()->first].name,
                            &OutputTensor::name) != conversion.plan.outputs.end());
}

/// Returns whether keys that begin with a text that programs do not read stay as they are.
bool keeps_prefix(const Conversion& conversion) {
  return std::ranges::any_of(conversion.source.recognition.flaws, [&](const ModelFlaw& flaw) {
    return flaw.kind == ModelFlaw::Kind::OtherPrefix &&
           std::ranges::find(conversion.plan.outputs, flaw.tensor, &OutputTensor::name) !=
               conversion.plan.outputs.end();
  });
}

/// Returns whether the model's own config.json lies beside an output that is one file, where programs find it.
bool has_config_beside(const Conversion& conversion) {
  constexpr i64 kMostBytes = i64{16} << 20;
  const std::filesystem::path beside = directory_of(conversion.output) / "config.json";
  if (!names_single_file(conversion.output) || !is_file(beside) || conversion.source.hints.config.empty()) return false;
  return without_python_numbers(read_small_file(beside, kMostBytes, ErrorCode::ConfigJson)) ==
         conversion.source.hints.config;
}

LoadsIn loaders_of(const Conversion& conversion) {
  const auto& [source, model, hints] = conversion.source;
  if (model.is_adapter) return adapter_loaders(*source, conversion.options.from);
  StoredModel stored = stored_model(*source, hints, model);
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    if (!model.blocks[i].is_optimizer_state())
      stored.experts.push_back(written_as(model.blocks[i], conversion.plan.experts[i]));
  stored.layout = conversion.plan.to;
  stored.rest = conversion.plan.rest;
  stored.format = to_string(conversion.target.format);
  stored.in_memory = keeps_memory_names(conversion);
  stored.has_config = conversion.target.has_config || has_config_beside(conversion);
  stored.has_args = conversion.target.makes_args;
  if (stored.not_whole.empty()) stored.not_whole = missing_ranks_text(*source, hints);
  if (stored.not_whole.empty()) stored.not_whole = lone_shard_text(*source);
  if (stored.not_whole.empty()) stored.not_whole = why_not_whole(model, stored.rest, keeps_prefix(conversion));
  return loads_in(stored);
}

/// Says which programs load the output, or why none does.
std::string loads_in_sentence(const LoadsIn& found) {
  if (found.is_unknown) return fmt::format("it is not known what loads the output: {}", found.why_none);
  return found.loaders.empty() ? fmt::format("nothing loads the output as it is: {}", found.why_none) : "";
}

/// Returns whether one of the warnings is the text, or gives it as its reason.
bool say(const std::vector<std::string>& warnings, const std::string& text) {
  return std::ranges::any_of(warnings, [&](const std::string& warning) { return warning.ends_with(text); });
}

/// Says what --from-glu was taken for; empty where nobody gave it.
std::string covered_text(const Conversion& conversion) {
  const SourceAnswers& from = conversion.options.from;
  if (!from.glu) return {};
  const Recognition& model = conversion.source.recognition;
  if (model.layout.is_dense())
    return fmt::format("{}glu {} is taken for the dense FC1 of {} layers", from.option_prefix, to_string(*from.glu),
                       model.architecture->layers);
  i64 layers = 0;
  bool states = false, shared = false;
  for (const ExpertBlock& block : conversion.source.recognition.blocks) {
    if (block.set == ExpertSet::Shared)
      shared = true;
    else if (block.is_optimizer_state())
      states = true;
    else
      ++layers;
  }
  std::string text = fmt::format("{}glu {} is taken for the routed experts of {} layer{}", from.option_prefix,
                                 to_string(*from.glu), layers, layers == 1 ? "" : "s");
  if (states && !from.optimizer_glu) text += ", and for their optimizer's states";
  const auto& shared_glu = conversion.source.recognition.layout.shared_glu;
  if (shared && shared_glu) text += fmt::format("; the shared expert is {}", to_string(*shared_glu));
  return text;
}

/// Whoever turns what loads into what does not is warned; of another checkpoint it is no news.
bool loads_source(const Conversion& conversion) {
  const auto& [source, model, hints] = conversion.source;
  return !conversion.loads_in.is_unknown && !loads_in(*source, hints, model, false).loaders.empty();
}

std::vector<std::string> warnings_of(const Conversion& conversion) {
  std::vector<std::string> warnings = conversion.target.args.warnings;
  if (!conversion.plan.foreign_order.empty())
    warnings.push_back("the output may load and compute something else. " + conversion.plan.foreign_order);
  for (std::string& text : unread_argument_texts(*conversion.source.source, conversion.source.hints))
    warnings.push_back(std::move(text));
  for (std::string& text : contradiction_texts(conversion.source.hints, conversion.source.recognition,
                                               conversion.source.source->inventory()))
    warnings.push_back(std::move(text));
  // One that is laid out anew gets targets that name its factors.
  if (conversion.source.recognition.is_adapter && conversion.source.source->info().laid_out_from.empty())
    for (std::string& text : target_texts(*conversion.source.source)) warnings.push_back(std::move(text));
  if (const std::string text = lone_shard_text(*conversion.source.source); !text.empty()) warnings.push_back(text);
  for (const std::string& text : dangling_texts(*conversion.source.source))
    warnings.push_back(text + " It is not copied");
  for (std::string& text : flaw_texts(*conversion.source.source, conversion.source.hints, conversion.source.recognition,
                                      keeps_prefix(conversion)))
    warnings.push_back(std::move(text));
  const CheckpointInfo& info = conversion.source.source->info();
  if (const std::string& word = conversion.options.from.encode;
      !word.empty() && info.encoded_weights == 0 &&
      (info.recast_tensors == 0 || !conversion.options.from.merge.empty()))
    warnings.push_back(fmt::format("--encode changes nothing: the weights are {} already", word));
  if (const std::string& from = conversion.options.from.fill_from;
      !from.empty() && conversion.source.source->info().filled.empty())
    warnings.push_back(fmt::format("--fill-from changes nothing: {} has no tensor that the source lacks", from));
  if (std::string text = wasted_consuming(conversion); !text.empty()) warnings.push_back(std::move(text));
  const bool is_stale = !stale_quantization(*conversion.source.source, conversion.options.from).empty();
  if (conversion.options.from.decode && conversion.source.source->info().decoded_weights.empty() && !is_stale)
    warnings.emplace_back("--decode changes nothing: no weight here is quantized");
  const bool renamed = conversion.plan.to.naming != conversion.plan.from.naming;
  const bool to_hub = conversion.options.target && conversion.options.target->starts_with("hf");
  if (const std::string text = missing_mtp_text(conversion, to_hub);
      renamed && conversion.options.to.scope == Scope::Model && !text.empty())
    warnings.push_back(text);
  if (to_hub || !renamed)
    for (std::string& text : missing_tower_texts(conversion.source.recognition)) warnings.push_back(std::move(text));
  if (const std::string text = missing_bias_text(conversion.source.recognition); renamed && to_hub && !text.empty())
    warnings.push_back(text);
  if (renamed && conversion.options.to.scope == Scope::Experts)
    warnings.push_back(fmt::format("--scope experts renames expert tensors alone; no program loads the result: {}",
                                   conversion.loads_in.why_none));
  const bool is_said =
      (renamed && conversion.options.to.scope == Scope::Experts) || say(warnings, conversion.loads_in.why_none);
  if (conversion.loads_in.loaders.empty() && !is_said && (conversion.options.target || loads_source(conversion)))
    warnings.push_back(loads_in_sentence(conversion.loads_in));
  return warnings;
}

}  // namespace

void add_notes(Conversion& conversion) {
  for (std::string& note : notes_of(conversion)) conversion.plan.notes.push_back(std::move(note));
}

void judge_output(Conversion& conversion) {
  add_notes(conversion);
  conversion.loads_in = loaders_of(conversion);
  conversion.warnings = warnings_of(conversion);
}

void tell_findings(const Conversion& conversion) {
  const RunOptions& run = conversion.run;
  const std::vector<std::string>& warnings = conversion.warnings;
  for (const std::string& warning : warnings) tell_warning(run, "{}", warning);
  if (const std::string text = loads_in_sentence(conversion.loads_in);
      !text.empty() && !say(warnings, text) && !say(warnings, conversion.loads_in.why_none))
    tell_note(run, "{}", text);
  if (const std::string text = covered_text(conversion); !text.empty()) tell_note(run, "{}", text);
  for (const std::string& note : conversion.plan.notes) tell_note(run, "{}", note);
}

}  // namespace glu_ckpt
