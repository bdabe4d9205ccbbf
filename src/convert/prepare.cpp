/// Makes a proved plan from paths and options.

#include <algorithm>

#include "arch/dense_table.hpp"
#include "convert/check_exact.hpp"
#include "convert/check_output.hpp"
#include "convert/consume.hpp"
#include "convert/conversion.hpp"
#include "convert/conversion_texts.hpp"
#include "convert/judge_copies.hpp"
#include "convert/parts.hpp"
#include "core/fail.hpp"
#include "format/check_apart.hpp"
#include "layout/adapter_names.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "model/adapter_view.hpp"
#include "model/known_orders.hpp"
#include "model/locate_errors.hpp"
#include "model/source_hints.hpp"
#include "model/stored_model.hpp"
#include "plan/plan_bytes.hpp"
#include "plan/target_block.hpp"
#include "verify/run_experts.hpp"

namespace glu_ckpt {
namespace {

/// Reports a source that was laid out anew, to be encoded, padded or cut, in the layout that its files have.
void take_stored_layout(const Record& stored, LayoutAnswers& layout) {
  const auto take = [&](const char* key, const auto& put) {
    if (const auto found = stored.find(key); found != stored.end()) put(found->second);
  };
  take("naming", [&](const std::string& word) { layout.naming = word; });
  take("experts", [&](const std::string& word) { layout.experts = word; });
  // A model without gates has no order in either layout.
  take("glu", [&](const std::string& word) {
    layout.glu = word == "none" ? Glu{Glu::Kind::None, 0} : parse_glu(word);
  });
  take("shared_glu", [&](const std::string& word) {
    layout.shared_glu = word == "none" ? Glu{Glu::Kind::None, 0} : parse_glu(word);
  });
}

Plan make_proved_plan(const Conversion& conversion) {
  const Source& source = *conversion.source.source;
  if (!conversion.output.empty()) check_apart(conversion.output, source);
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
  take_stored_layout(source.info().laid_out_from, plan.from);
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
  for (std::string& note : notes_of(conversion, stale)) plan.notes.push_back(std::move(note));
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

/// The form in which the output has the experts of a block.
StoredExperts written_as(const Conversion& conversion, const ExpertBlock& block) {
  const BlockTarget target =
      make_target(block, conversion.source.recognition, conversion.target.to, conversion.target.former.forms);
  StoredExperts stored = stored_as(block);
  stored.experts = target.experts;
  if (stored.bias_experts) stored.bias_experts = target.bias_experts;
  stored.fused = target.glu.kind != Glu::Kind::Split && !target.halved;
  stored.glu = target.glu;
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

LoadsIn loaders_of(const Conversion& conversion) {
  const auto& [source, model, hints] = conversion.source;
  if (model.is_adapter) return adapter_loaders(source->inventory());
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

/// The type of model that a configuration is made of, where the target is one that needs it: that after "hf:", or any.
std::optional<std::string> trained_type_for(const ConvertOptions& options) {
  constexpr std::string_view kHfTarget = "hf:";
  if (!options.target || *options.target == "megatron") return std::nullopt;
  return options.target->starts_with(kHfTarget) ? options.target->substr(kHfTarget.size()) : std::string();
}

/// The layout in which an adapter is to be written.
std::string adapter_layout_for(const ConvertOptions& options) {
  const std::string& asked = options.from.adapter_layout;
  const bool is_shared = asked.ends_with(kSharedFactors);
  std::string layout = is_shared ? asked.substr(0, asked.size() - kSharedFactors.size()) : asked;
  if (options.target == "megatron")
    layout = options.to.glu ? "megatron" + std::string(kSplitFactors) : "megatron";
  else if (options.to.experts)
    layout = *options.to.experts == Experts::Grouped ? "grouped" : "indexed";
  else if (layout.empty())
    layout = options.target.value_or(is_shared ? "" : "stored");
  return layout + std::string(is_shared ? kSharedFactors : "");
}

/// Opens the source with scales for smaller blocks of rows, where the target's order of FC1 would cut those it has.
void refine_source(Conversion& conversion, const SourceOpener& open) {
  const TargetAnswers& to = conversion.target.to;
  const i64 rows = finer_scale_rows(conversion.source.recognition.blocks, to.glu, to.shared_glu);
  if (rows == 0) return;
  SourceAnswers finer = conversion.options.from;
  finer.scale_rows = rows;
  const i64 stored_bytes = tensor_bytes(conversion.source.model());
  conversion.source = open_checkpoint(open(), finer);
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

/// Opens and recognizes the source, and settles the target.
void open_ends(Conversion& conversion, const SourceOpener& open) {
  conversion.options.from.trained_type = trained_type_for(conversion.options);
  conversion.options.from.adapter_layout = adapter_layout_for(conversion.options);
  conversion.source = open_checkpoint(open(), conversion.options.from);
  if (conversion.source.recognition.is_adapter && conversion.options.from.adapter_layout != "stored") {
    SourceAnswers logical = conversion.options.from;
    logical.adapter_layout.clear();
    conversion.adapter = open_checkpoint(open(), logical);
  }
  conversion.target = locate_errors(*conversion.source.source, [&] {
    return resolve_target(conversion.output, conversion.options, conversion.source);
  });
  refine_source(conversion, open);
  share_source_scales(conversion);
}

}  // namespace

Conversion prepare(const std::filesystem::path& input, const std::filesystem::path& output,
                   const ConvertOptions& options, const RunOptions& run, CopyReading reading, Ranks& ranks,
                   ConsumedFiles* consumed) {
  at_first_rank(ranks, [&] {
    check_output(input, output, options);
    check_consuming_options(input, options, ranks.size());
  });
  Conversion conversion{.input = input, .output = output, .options = options, .run = run, .consumed = consumed};
  together(ranks, [&] {
    // A GPU that was named opens while the source is read; for "auto" the plan decides.
    if (run.device != "auto") conversion.backend = open_backend(run);
    open_ends(conversion, [&] { return open_source(input); });
  });
  conversion.plan = make_shared_plan(conversion, ranks);
  together(ranks, [&] {
    if (!conversion.backend) conversion.backend = open_backend(run, gathered_bytes(conversion.plan));
  });
  keep_source(conversion);
  conversion.loads_in = loaders_of(conversion);
  conversion.warnings = warnings_of(conversion, keeps_prefix(conversion));
  at_first_rank(ranks, [&] {
    for (const std::string& warning : conversion.warnings) tell_warning(run, "{}", warning);
    if (const std::string text = loads_in_sentence(conversion.loads_in);
        !text.empty() && std::ranges::find(conversion.warnings, text) == conversion.warnings.end() &&
        std::ranges::find(conversion.warnings, conversion.loads_in.why_none) == conversion.warnings.end())
      tell_note(run, "{}", text);
    if (const std::string text = covered_text(conversion); !text.empty()) tell_note(run, "{}", text);
    for (const std::string& note : conversion.plan.notes) tell_note(run, "{}", note);
  });
  settle_copies(conversion, reading, ranks);
  at_first_rank(ranks, [&] {
    check_parts(conversion, ranks.size());
    check_consumable(conversion);
  });
  return conversion;
}

Conversion prepare_in_memory(const SourceOpener& open, const ConvertOptions& options, const RunOptions& run,
                             bool has_values) {
  Conversion conversion{.input = {}, .output = {}, .options = options, .run = run};
  open_ends(conversion, open);
  const std::unique_ptr<Ranks> alone = make_single_rank();
  conversion.plan = make_shared_plan(conversion, *alone);
  for (const std::string& note : conversion.plan.notes) tell_note(run, "{}", note);
  if (!has_values) return conversion;
  settle_copies(conversion, CopyReading::Whole, *alone);
  check_master_weights(run, conversion.source, options.from);
  return conversion;
}

void check_evidence(const Conversion& conversion) {
  // The run that removed files of the source has made it.
  if (conversion.consumed == nullptr || !conversion.consumed->has_removed())
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
