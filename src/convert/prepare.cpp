/// Makes a proved plan from paths and options.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "arch/dense_table.hpp"
#include "arch/trained_config.hpp"
#include "convert/check_output.hpp"
#include "convert/conversion.hpp"
#include "core/byte_fields.hpp"
#include "core/compute.hpp"
#include "core/fail.hpp"
#include "families/architecture.hpp"
#include "format/check_apart.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "model/known_orders.hpp"
#include "model/locate_errors.hpp"
#include "model/saved_arguments.hpp"
#include "model/source_hints.hpp"
#include "model/stored_model.hpp"
#include "plan/plan_bytes.hpp"
#include "plan/target_block.hpp"
#include "quant/find_quantized.hpp"
#include "quant/quant_config.hpp"
#include "verify/run_experts.hpp"

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

/// Refuses computed tensors of which an element would not come back. They are small, and read here.
void check_computed(const Source& source, const Plan& plan) {
  for (const Compute& computed : plan.computes) {
    const TensorRef& tensor = source.inventory().tensors[computed.src];
    const OutputTensor& output = plan.outputs[computed.dst];
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
    source.read(computed.src, 0, bytes);
    if (const i64 lost = first_lost(computed.op, tensor.dtype, bytes, output.dtype); lost >= 0)
      fail(ErrorCode::NotExact, {{}, tensor.name},
           "'{}': element {} does not come back from '{}', which is computed as {} in {}", tensor.name, lost,
           output.name, to_string(computed.op), dtype_name(output.dtype));
  }
}

/// Refuses codes and scales that quantization_config contradicts, where they stand as their software stores them.
void check_quantized(const Source& source, const Recognition& model, const ModelHints& hints) {
  const QuantConfig config = quant_config_of(source, hints);
  const bool as_written = std::ranges::all_of(model.blocks, [](const ExpertBlock& block) {
    return block.codes == TensorKind::Blocks || (block.experts == Experts::Indexed && !block.fused);
  });
  if (!config.method.empty() && as_written && holds_codes(model.blocks))
    find_quantized(source.inventory(), config, weight_axes(model.blocks));
}

/// Returns whether gate and up of the block, which are two tensors, become one.
bool fuses(const ExpertBlock& block, const TargetAnswers& to) {
  const Glu glu = (block.set == ExpertSet::Shared ? to.shared_glu : to.glu).value_or(block.glu);
  return block.glu.kind == Glu::Kind::Split && !block.is_optimizer_state() && glu.kind != Glu::Kind::Split;
}

std::vector<u32> column_groups(const Source& source, const Matrix& matrix) {
  std::vector<u32> groups(static_cast<std::size_t>(matrix.cols));
  source.read(matrix.tensor, matrix.place.offset, std::as_writable_bytes(std::span(groups)));
  return groups;
}

void check_one_order(const Source& source, const Matrix& gate, const Matrix& up) {
  const std::vector<u32> of_gate = column_groups(source, gate), of_up = column_groups(source, up);
  const auto [first, second] = std::ranges::mismatch(of_gate, of_up);
  if (first == of_gate.end()) return;
  const auto& tensors = source.inventory().tensors;
  fail(ErrorCode::NotExact, {{}, tensors[up.tensor].name},
       "'{}' has column {} in group {}, and '{}' in group {} (expert {}): one tensor of gate and up has one order of "
       "columns for all of its rows. Keep gate and up apart (--glu split)",
       tensors[gate.tensor].name, first - of_gate.begin(), *first, tensors[up.tensor].name, *second, up.expert);
}

/// Refuses to put gate and up of INT4 into one tensor where their columns are reordered in ways of their own
/// (`weight_g_idx`).
void check_column_groups(const Source& source, const Recognition& model, const TargetAnswers& to) {
  for (const ExpertBlock& block : model.blocks) {
    if (!fuses(block, to)) continue;
    std::map<i64, const Matrix*> gates;
    for (const Matrix& matrix : block.matrices)
      if (matrix.kind == TensorKind::PackedGroupIndex && matrix.role == Role::Gate) gates[matrix.expert] = &matrix;
    for (const Matrix& matrix : block.matrices)
      if (matrix.kind == TensorKind::PackedGroupIndex && matrix.role == Role::Up)
        check_one_order(source, *gates.at(matrix.expert), matrix);
  }
}

/// Says of a config.json that nobody wrote what it is made of.
std::string made_config_note(const Conversion& conversion) {
  const ModelHints& hints = conversion.source.hints;
  std::string text = fmt::format(
      "config.json is made from the arguments that the trainer saved, for a model of type '{}'. What they do not say, "
      "such as the ids of special tokens, is not in it, so that programs take the family's defaults; there are no "
      "tokenizer files",
      hints.model_type);
  if (!has_vocabulary(hints.trained_args))
    text += ". They do not say the size of the vocabulary, so vocab_size counts the embedding's rows, padding included";
  return text;
}

/// Says of a config.json that is no file of the source where it is from.
std::string kept_config_note(const Conversion& conversion) {
  const bool is_recorded = conversion.source.source->hints().config.empty();
  return fmt::format("config.json is {}", is_recorded ? "the one that the source's record holds"
                                                      : "the one that lies beside the source's file");
}

/// Refuses a change of layout beside optimizer state that would stay in the old one.
void check_optimizer_parts(const Source& source, const ConvertOptions& options, const Plan& plan) {
  const LayoutAnswers &from = plan.from, &to = plan.to;
  const bool same =
      from.naming == to.naming && from.experts == to.experts && from.glu == to.glu && from.shared_glu == to.shared_glu;
  if (same || options.from.drop_optimizer) return;
  for (const std::string& text : optimizer_part_texts(source))
    fail(ErrorCode::OptimizerBuckets, {source.path().string(), {}}, "{}: {}", source.path().string(), text);
}

Plan make_proved_plan(const Conversion& conversion) {
  const Source& source = *conversion.source.source;
  check_apart(conversion.output, source);
  const ConvertOptions& options = conversion.options;
  const auto& naming = conversion.target.to.naming;
  const Recognition& model = conversion.source.recognition;
  if (naming && find_naming(*naming) != model.naming)
    locate_errors(source, [&] {
      check_codes_are_named(source.inventory(), model, *naming, conversion.target.to.scope == Scope::Model);
    });
  const std::string stale = stale_quantization(source, options.from);
  const bool reads_anew = source.info().respelled || !source.info().decoded_weights.empty() ||
                          source.info().recast_tensors > 0 || (options.from.decode && !stale.empty());
  Plan plan = locate_errors(source, [&] {
    return make_plan(source.inventory(), conversion.source.recognition,
                     {conversion.target.to, conversion.target.former, options.max_shard_bytes,
                      options.force || reads_anew, conversion.target.format != source.format()});
  });
  if (!plan.foreign_order.empty() && !options.allow_foreign_order)
    fail(ErrorCode::ForeignOrder, {conversion.output.string(), {}},
         "{}: would load and compute something else. {}; --allow-foreign-order writes this one all the same, and the "
         "record says so",
         conversion.output.string(), plan.foreign_order);
  check_optimizer_parts(source, options, plan);
  check_plan(source.inventory(), plan);
  locate_errors(source, [&] { check_quantized(source, conversion.source.recognition, conversion.source.hints); });
  check_computed(source, plan);
  locate_errors(source, [&] { check_column_groups(source, conversion.source.recognition, conversion.target.to); });
  if (!stale.empty())
    plan.notes.push_back(
        fmt::format("{} says that weights are quantized, and none is: the output does not have it", stale));
  if (const CheckpointInfo& info = source.info(); !info.decoded_weights.empty())
    plan.notes.push_back(fmt::format("{} quantized weights are decoded ({}), as {} decodes them",
                                     info.decoded_weights.size(), info.record.at("decoded_from"),
                                     info.record.at("decoded_as")));
  if (conversion.finer_scales.rows > 0) plan.notes.push_back(finer_scales_note(conversion));
  if (conversion.second_scales.pairs > 0)
    plan.notes.push_back(fmt::format(
        "gate and up become one tensor, and in {} expert{} their second scales (NVFP4) differ by powers of two: they "
        "become one, and block scales are multiplied by powers of two, all exactly. The decoded weights stay as they "
        "are; the way back keeps the one scale",
        conversion.second_scales.pairs, conversion.second_scales.pairs == 1 ? "" : "s"));
  if (const std::string& why = conversion.second_scales.why_none; !why.empty())
    plan.notes.push_back(fmt::format(
        "gate and up become one tensor and keep a second scale (NVFP4) each, for one would not be exact: {}. "
        "Programs that read one scale for both compute something else",
        why));
  if (!conversion.target.config.name.empty())
    plan.notes.push_back(conversion.source.hints.config_is_made ? made_config_note(conversion)
                                                                : kept_config_note(conversion));
  if (const auto& left_out = conversion.source.recognition.dropped; !left_out.empty())
    plan.notes.push_back(fmt::format("{} tensors of the optimizer are left out", left_out.size()));
  for (const std::string& name : source.left_out())
    plan.notes.push_back(fmt::format("{} is not part of the checkpoint and is left behind", name));
  return plan;
}

/// Made and proved by rank 0 alone.
Plan make_shared_plan(const Conversion& conversion, Ranks& ranks) {
  Plan plan;
  at_first_rank(ranks, [&] { plan = make_proved_plan(conversion); });
  if (ranks.size() == 1) return plan;
  const std::vector<std::byte> bytes = ranks.broadcast(ranks.rank() == 0 ? plan_bytes(plan) : std::vector<std::byte>());
  together(ranks, [&] {
    if (ranks.rank() == 0) return;
    plan = parse_plan_bytes(bytes);
    const i64 tensors = std::ssize(conversion.source.source->inventory().tensors);
    const std::string input = conversion.input.string();
    for (const Move& move : plan.moves)
      if (static_cast<i64>(move.src) >= tensors)
        fail(ErrorCode::SourceChanged, {input, {}},
             "{}: has {} tensors here, and more at rank 0; all ranks must see the same files", input, tensors);
  });
  return plan;
}

}  // namespace

namespace {

/// The form in which the output has the experts of a block.
StoredExperts written_as(const Conversion& conversion, const ExpertBlock& block) {
  const BlockTarget target = make_target(block, conversion.source.recognition, conversion.target.to);
  StoredExperts stored = stored_as(block);
  stored.experts = target.experts;
  if (stored.bias_experts) stored.bias_experts = target.bias_experts;
  stored.fused = target.glu.kind != Glu::Kind::Split && !target.halved;
  stored.glu = target.glu;
  return stored;
}

/// Returns whether keys that begin with a text that programs do not read stay as they are.
bool keeps_prefix(const Conversion& conversion) {
  return std::ranges::any_of(conversion.source.recognition.flaws, [&](const ModelFlaw& flaw) {
    return flaw.kind == ModelFlaw::Kind::OtherPrefix &&
           std::ranges::find(conversion.plan.outputs, flaw.tensor, &OutputTensor::name) !=
               conversion.plan.outputs.end();
  });
}

/// Returns whether the output has names that transformers has in memory.
bool keeps_memory_names(const Conversion& conversion) {
  const auto& [source, model, hints] = conversion.source;
  return model.in_memory &&
         (model.model_names.empty() ||
          std::ranges::find(conversion.plan.outputs, source->inventory().tensors[model.model_names.begin()->first].name,
                            &OutputTensor::name) != conversion.plan.outputs.end());
}

LoadsIn loaders_of(const Conversion& conversion) {
  const auto& [source, model, hints] = conversion.source;
  StoredModel stored = stored_model(*source, hints, model);
  for (const ExpertBlock& block : model.blocks)
    if (!block.is_optimizer_state()) stored.experts.push_back(written_as(conversion, block));
  stored.layout = conversion.plan.to;
  stored.rest = conversion.plan.rest;
  stored.format = to_string(conversion.target.format);
  stored.in_memory = keeps_memory_names(conversion);
  stored.has_config = conversion.target.has_config;
  stored.has_args = conversion.target.makes_args;
  if (stored.not_whole.empty()) stored.not_whole = missing_ranks_text(*source, hints);
  if (stored.not_whole.empty()) stored.not_whole = lone_shard_text(*source);
  if (stored.not_whole.empty()) stored.not_whole = why_not_whole(model, stored.rest, keeps_prefix(conversion));
  return loads_in(stored);
}

std::string loads_in_sentence(const LoadsIn& found) {
  if (found.is_unknown) return fmt::format("it is not known what loads the output: {}", found.why_none);
  if (found.loaders.empty()) return fmt::format("nothing loads the output as it is: {}", found.why_none);
  std::string programs;
  for (const Loader& loader : found.loaders) programs += (programs.empty() ? "" : ", ") + loader.program;
  return fmt::format("the output loads in {}", programs);
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

/// Hubs have such models, and transformers saves none of MTP: the rest is whole. Empty where nothing is missing.
std::string missing_mtp_text(const Recognition& model) {
  if (!lacks_promised_mtp(model)) return {};
  const Architecture* const architecture = model.architecture.get();
  return fmt::format(
      "config.json promises {} MTP layer{} ({}), but the checkpoint has no tensor of one: the output has none, and a "
      "program that asks for it will not find it",
      architecture->mtp_layers, architecture->mtp_layers == 1 ? "" : "s", architecture->mtp_field);
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

/// Lists what may load and compute something else, or what no program loads though it looks as if one did.
std::vector<std::string> warnings_of(const Conversion& conversion) {
  std::vector<std::string> warnings;
  if (conversion.target.makes_args) warnings = arguments_for(conversion.source, conversion.plan.to).warnings;
  if (!conversion.plan.foreign_order.empty())
    warnings.push_back("the output may load and compute something else. " + conversion.plan.foreign_order);
  for (std::string& text : unread_argument_texts(*conversion.source.source, conversion.source.hints))
    warnings.push_back(std::move(text));
  for (std::string& text : contradiction_texts(conversion.source.hints, conversion.source.recognition,
                                               conversion.source.source->inventory()))
    warnings.push_back(std::move(text));
  if (const std::string text = lone_shard_text(*conversion.source.source); !text.empty()) warnings.push_back(text);
  for (const std::string& text : dangling_texts(*conversion.source.source))
    warnings.push_back(text + " It is not copied");
  for (std::string& text : flaw_texts(*conversion.source.source, conversion.source.hints, conversion.source.recognition,
                                      keeps_prefix(conversion)))
    warnings.push_back(std::move(text));
  if (conversion.options.from.encode_mxfp8 && conversion.source.source->info().recast_tensors == 0)
    warnings.emplace_back("--encode changes nothing: no weight here is quantized in another form than MXFP8");
  const bool is_stale = !stale_quantization(*conversion.source.source, conversion.options.from).empty();
  if (conversion.options.from.decode && conversion.source.source->info().decoded_weights.empty() && !is_stale)
    warnings.emplace_back("--decode changes nothing: no weight here is quantized");
  const bool renamed = conversion.plan.to.naming != conversion.plan.from.naming;
  if (const std::string text = missing_mtp_text(conversion.source.recognition);
      renamed && conversion.options.to.scope == Scope::Model && !text.empty())
    warnings.push_back(text);
  const bool to_hub = conversion.options.target && conversion.options.target->starts_with("hf");
  if (const std::string text = missing_bias_text(conversion.source.recognition); renamed && to_hub && !text.empty())
    warnings.push_back(text);
  if (renamed && conversion.options.to.scope == Scope::Experts)
    warnings.push_back(fmt::format("--scope experts renames expert tensors alone; no program loads the result: {}",
                                   conversion.loads_in.why_none));
  const bool is_said = (renamed && conversion.options.to.scope == Scope::Experts) ||
                       std::ranges::find(warnings, conversion.loads_in.why_none) != warnings.end();
  if (conversion.options.target && conversion.loads_in.loaders.empty() && !is_said)
    warnings.push_back(loads_in_sentence(conversion.loads_in));
  return warnings;
}

/// The type of model that a configuration is made of, where the target is one that needs it: that after "hf:", or any.
std::optional<std::string> trained_type_for(const ConvertOptions& options) {
  constexpr std::string_view kHfTarget = "hf:";
  if (!options.target || *options.target == "megatron") return std::nullopt;
  return options.target->starts_with(kHfTarget) ? options.target->substr(kHfTarget.size()) : std::string();
}

/// Opens the source with scales for smaller blocks of rows, where the target's order of FC1 would cut those it has.
void refine_source(Conversion& conversion) {
  const TargetAnswers& to = conversion.target.to;
  const i64 rows = finer_scale_rows(conversion.source.recognition.blocks, to.glu, to.shared_glu);
  if (rows == 0) return;
  SourceAnswers finer = conversion.options.from;
  finer.scale_rows = rows;
  const i64 stored_bytes = tensor_bytes(conversion.source.model());
  conversion.source = open_checkpoint(conversion.input, finer);
  conversion.finer_scales = {rows, tensor_bytes(conversion.source.model()) - stored_bytes};
  conversion.target = locate_errors(*conversion.source.source, [&] {
    return resolve_target(conversion.output, conversion.options, conversion.source);
  });
}

/// Gives gate and up of NVFP4 one second scale where the target puts them into one tensor and that is exact.
void share_source_scales(Conversion& conversion) {
  const TargetAnswers& to = conversion.target.to;
  if (std::ranges::any_of(conversion.source.recognition.blocks,
                          [&](const ExpertBlock& block) { return fuses(block, to); }))
    conversion.second_scales = share_second_scales(conversion.source);
}

}  // namespace

Conversion prepare(const std::filesystem::path& input, const std::filesystem::path& output,
                   const ConvertOptions& options, const RunOptions& run, Ranks& ranks) {
  at_first_rank(ranks, [&] { check_output(input, output, options); });
  Conversion conversion{.input = input, .output = output, .options = options, .run = run};
  together(ranks, [&] {
    // A GPU that was named opens while the source is read; for "auto" the plan decides.
    if (run.device != "auto") conversion.backend = open_backend(run, 0);
    conversion.options.from.trained_type = trained_type_for(options);
    conversion.source = open_checkpoint(input, conversion.options.from);
    conversion.target = locate_errors(*conversion.source.source,
                                      [&] { return resolve_target(output, conversion.options, conversion.source); });
    refine_source(conversion);
    share_source_scales(conversion);
  });
  conversion.plan = make_shared_plan(conversion, ranks);
  together(ranks, [&] {
    if (!conversion.backend) conversion.backend = open_backend(run, gathered_bytes(conversion.plan));
  });
  conversion.loads_in = loaders_of(conversion);
  conversion.warnings = warnings_of(conversion);
  at_first_rank(ranks, [&] {
    for (const std::string& warning : conversion.warnings) tell_warning(run, "{}", warning);
    if (const std::string text = loads_in_sentence(conversion.loads_in);
        std::ranges::find(conversion.warnings, text) == conversion.warnings.end() &&
        std::ranges::find(conversion.warnings, conversion.loads_in.why_none) == conversion.warnings.end())
      tell_note(run, "{}", text);
    if (const std::string text = covered_text(conversion); !text.empty()) tell_note(run, "{}", text);
    for (const std::string& note : conversion.plan.notes) tell_note(run, "{}", note);
  });
  return conversion;
}

namespace {

/// Says what becomes of copies that are none, and lets those be copies that were only rounded, if the plan drops them.
/// Throws where it drops another one.
void judge_copies(const Conversion& conversion, std::vector<UnlikeCopy>& copies) {
  const Source& source = *conversion.source.source;
  std::erase_if(copies, [&](const UnlikeCopy& copy) {
    const auto is_it = [&](std::size_t index) { return source.inventory().tensors[index].name == copy.name; };
    const bool is_dropped = std::ranges::any_of(conversion.plan.dropped, is_it);
    if (is_dropped && !copy.rounded)
      locate_errors(source, [&] {
        fail(ErrorCode::CopyDiffers, {{}, copy.name}, "{}: it is no copy, and nothing else holds it",
             to_sentence(copy));
      });
    if (is_dropped)
      tell_note(conversion.run, "{}: it is left out, and '{}' stands for both", to_sentence(copy), copy.original);
    else
      tell_note(conversion.run, "{}: it is moved as a tensor of its own", to_sentence(copy));
    return is_dropped;
  });
}

std::vector<UnlikeCopy> share_copies(const std::vector<UnlikeCopy>& copies, Ranks& ranks) {
  ByteWriter out;
  out.number(std::ssize(copies));
  for (const UnlikeCopy& copy : copies) {
    out.text(copy.name);
    out.text(copy.original);
    out.number(copy.byte);
  }
  const std::vector<std::byte> bytes = ranks.broadcast(out.take());
  ByteReader in(bytes, "a list of copies");
  std::vector<UnlikeCopy> all(in.count(3 * sizeof(i64)));
  for (UnlikeCopy& copy : all) {
    copy.name = in.text();
    copy.original = in.text();
    copy.byte = in.number();
  }
  in.end();
  return all;
}

}  // namespace

void settle_copies(Conversion& conversion, CopyReading reading, Ranks& ranks) {
  at_first_rank(ranks, [&] {
    conversion.unlike_copies = find_unlike_copies(conversion.run, conversion.source, reading);
    judge_copies(conversion, conversion.unlike_copies);
  });
  conversion.unlike_copies = share_copies(conversion.unlike_copies, ranks);
  take_as_own(conversion.unlike_copies, conversion.source.source->inventory(), conversion.source.recognition);
}

void check_evidence(const Conversion& conversion) {
  check_master_weights(conversion.run, conversion.source, conversion.options.from);
  check_forward(conversion);
}

void check_forward(const Conversion& conversion) {
  if (conversion.options.proof != ProofMode::Forward) return;
  require_known_glu(conversion.source, conversion.options.from.option_prefix);
  (void)forward_options(conversion.options.compute, {.seed = conversion.options.seed}, conversion.run,
                        conversion.source, conversion.source);
}

}  // namespace glu_ckpt
