/// Makes a proved plan from paths and options.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "arch/dense_table.hpp"
#include "convert/check_output.hpp"
#include "convert/consume.hpp"
#include "convert/conversion.hpp"
#include "convert/judge.hpp"
#include "convert/parts.hpp"
#include "core/fail.hpp"
#include "format/check_apart.hpp"
#include "layout/adapter_names.hpp"
#include "layout/bare_codes.hpp"
#include "layout/element_grid.hpp"
#include "model/adapter_view.hpp"
#include "model/known_orders.hpp"
#include "model/locate_errors.hpp"
#include "model/saved_arguments.hpp"
#include "model/source_hints.hpp"
#include "model/stored_model.hpp"
#include "plan/draft_outputs.hpp"
#include "plan/plan_bytes.hpp"
#include "quant/encoded_source.hpp"

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
  // Whoever asks for shards of a size, or for one file of several, wants other files of the same tensors.
  const bool cuts_anew = options.max_shard_bytes != ConvertOptions().max_shard_bytes ||
                         (names_single_file(conversion.output) && source.inventory().files.size() > 1);
  const bool reads_anew = source.info().respelled || !source.info().decoded_weights.empty() ||
                          source.info().recast_tensors > 0 ||
                          (!model.is_adapter && !source.info().laid_out_from.empty()) ||
                          (options.from.decode && !stale_quantization(source, options.from).empty());
  Plan plan = locate_errors(source, [&] {
    return name_configuration(conversion.source.hints, [&] {
      try {
        return make_plan(source.inventory(), conversion.source.recognition,
                         {conversion.target.to, conversion.target.former, options.max_shard_bytes,
                          options.force || reads_anew || cuts_anew, conversion.target.format != source.format()});
      } catch (const Error& error) {
        if (error.code() != ErrorCode::AlreadyInLayout) throw;
        const std::string& filler = options.from.fill_from;
        if (!filler.empty())
          throw Error(error.code(),
                      fmt::format("{}. --fill-from changes nothing: {} has no tensor that the source lacks",
                                  error.what(), filler),
                      error.file(), error.tensor());
        if (!options.from.decode) throw;
        throw Error(error.code(),
                    fmt::format("{}. No weight of it is quantized: --decode has none to decode", error.what()),
                    error.file(), error.tensor());
      }
    });
  });
  // Blocks are shared with no other format.
  if (conversion.target.format == Format::Safetensors) plan.data_phases = choose_data_phases(source.inventory(), plan);
  take_stored_layout(source.info().laid_out_from, plan.from);
  check_exact(conversion, plan);
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
    layout += *options.to.experts == Experts::Grouped ? kGroupedFactors : kIndexedFactors;
  else if (layout.empty())
    layout = options.target.value_or(is_shared                      ? ""
                                     : options.from.to_lora.empty() ? "stored"
                                                                    : std::string(kGroupedFactors));
  return layout + std::string(is_shared ? kSharedFactors : "");
}

/// Opens the source with scales for smaller blocks of rows, where the target's order of FC1 would cut those it has.
void refine_source(Conversion& conversion, const SourceOpener& open, const SourceAnswers& answers) {
  const TargetAnswers& to = conversion.target.to;
  const i64 rows = finer_scale_rows(conversion.source.recognition.blocks, to.glu, to.shared_glu);
  if (rows == 0) return;
  SourceAnswers finer = answers;
  finer.scale_rows = rows;
  const i64 stored_bytes = tensor_bytes(conversion.source.model());
  conversion.source = open_checkpoint(open(), finer);
  conversion.finer_scales = {rows, tensor_bytes(conversion.source.model()) - stored_bytes};
  conversion.target = locate_errors(*conversion.source.source, [&] {
    return resolve_target(conversion.output, conversion.options, conversion.source);
  });
}

/// Returns whether gate and up of the block, which are two tensors, become one.
bool fuses(const ExpertBlock& block, const TargetAnswers& to) {
  const Glu glu = (block.set == ExpertSet::Shared ? to.shared_glu : to.glu).value_or(block.glu);
  return block.glu.kind == Glu::Kind::Split && !block.is_optimizer_state() && glu.kind != Glu::Kind::Split;
}

bool has_second_scales(const ExpertBlock& block) {
  return std::ranges::any_of(block.matrices, [](const Matrix& matrix) {
    return matrix.kind == TensorKind::SecondScale || matrix.kind == TensorKind::GlobalScale;
  });
}

/// Gives gate and up of NVFP4 one second scale where the target puts them into one tensor and that is exact.
void share_source_scales(Conversion& conversion) {
  const TargetAnswers& to = conversion.target.to;
  if (std::ranges::any_of(conversion.source.recognition.blocks,
                          [&](const ExpertBlock& block) { return fuses(block, to) && has_second_scales(block); }))
    conversion.second_scales = share_second_scales(conversion.source);
}

/// Opens and recognizes the source, and settles the target.
void open_ends(Conversion& conversion, const SourceOpener& open) {
  SourceAnswers answers = conversion.options.from;
  answers.trained_type = trained_type_for(conversion.options);
  answers.adapter_layout = adapter_layout_for(conversion.options);
  conversion.source = open_checkpoint(open(), answers);
  if (conversion.source.recognition.is_adapter && answers.adapter_layout != "stored") {
    SourceAnswers logical = answers;
    logical.adapter_layout.clear();
    logical.to_lora.clear();
    conversion.adapter = open_checkpoint(open(), logical);
  }
  conversion.target = locate_errors(*conversion.source.source, [&] {
    return name_configuration(conversion.source.hints,
                              [&] { return resolve_target(conversion.output, conversion.options, conversion.source); });
  });
  refine_source(conversion, open, answers);
  share_source_scales(conversion);
}

}  // namespace

namespace {

Conversion prepare_once(const std::filesystem::path& input, const std::filesystem::path& output,
                        const ConvertOptions& options, const RunOptions& run, CopyReading reading, Ranks& ranks,
                        ConsumedFiles* consumed) {
  at_first_rank(ranks, [&] {
    check_output(input, output, options);
    if (options.consume_source) check_consuming_options(input, options, ranks.size());
    if (options.part.of > 0) check_parts(output, options, ranks.size());
  });
  Conversion conversion{.input = input, .output = output, .options = options, .run = run, .consumed = consumed};
  const bool computes = !options.from.encode.empty() || !options.from.merge.empty();
  together(ranks, [&] {
    // A GPU that was named opens while the source is read; for "auto" the plan decides.
    if (run.device != "auto") conversion.backend = open_backend(run, nullptr, computes);
    open_ends(conversion, [&] { return open_source(input); });
  });
  conversion.plan = make_shared_plan(conversion, ranks);
  together(ranks, [&] {
    complete_target(conversion.target, conversion.source, conversion.plan, options.from.drop_optimizer);
    if (!conversion.backend) conversion.backend = open_backend(run, &conversion.plan, computes);
    conversion.source.source->compute_on(conversion.backend->weight_device());
  });
  if (consumed != nullptr) keep_source(conversion);
  judge_output(conversion);
  at_first_rank(ranks, [&] { tell_findings(conversion); });
  if (!conversion.source.recognition.copies.empty()) settle_copies(conversion, reading, ranks);
  if (options.consume_source) at_first_rank(ranks, [&] { check_consumable(conversion); });
  return conversion;
}

/// Gives the options a value with which a conversion may go on to what it would ask next; false where one has none.
bool suppose(const std::vector<std::string>& asked, ConvertOptions& options) {
  using Give = void (*)(ConvertOptions&);
  constexpr std::pair<std::string_view, Give> kAnswers[] = {
      {"--from-glu",
       [](ConvertOptions& o) {
         o.from.glu = Glu{Glu::Kind::Contiguous, 0};
       }},
      {"--from-shared-glu",
       [](ConvertOptions& o) {
         o.from.shared_glu = Glu{Glu::Kind::Contiguous, 0};
       }},
      {"--from-optimizer-glu",
       [](ConvertOptions& o) {
         o.from.optimizer_glu = Glu{Glu::Kind::Contiguous, 0};
       }},
      {"--optimizer", [](ConvertOptions& o) { o.from.drop_optimizer = true; }},
      {"--unknown", [](ConvertOptions& o) { o.to.keep_unknown = true; }},
      {"--decode", [](ConvertOptions& o) { o.from.decode = Dtype::BF16; }},
      {"--allow-narrowing", [](ConvertOptions& o) { o.from.allow_narrowing = true; }},
      {"--grow-rank", [](ConvertOptions& o) { o.from.grow_rank = true; }},
  };
  return std::ranges::all_of(asked, [&](const std::string& option) {
    const auto answer = std::ranges::find(kAnswers, option, [](const auto& one) { return one.first; });
    if (answer == std::end(kAnswers)) return false;
    answer->second(options);
    return true;
  });
}

/// Goes on as if what an error asks for had been given, as long as the next error asks for something, too, and throws
/// one that asks for all of it. Returns where there is no more.
void ask_at_once(const Error& first, const std::filesystem::path& input, const std::filesystem::path& output,
                 ConvertOptions options, RunOptions run) {
  options.consume_source = false;
  run.observer = nullptr;
  run.device = "cpu";
  std::vector<std::string> asked = first.missing_options(), news = asked;
  std::string text = first.what();
  const auto alone = make_single_rank();
  while (!news.empty() && suppose(news, options)) {
    news.clear();
    try {
      (void)prepare_once(input, output, options, run, CopyReading::Sample, *alone, nullptr);
    } catch (const Error& next) {
      if (next.code() == ErrorCode::Interrupted) throw;
      for (const std::string& option : next.missing_options())
        if (std::ranges::find(asked, option) == asked.end()) news.push_back(option);
      if (!news.empty()) text += fmt::format(". Beyond that, {}", next.what());
    }
    asked.insert(asked.end(), news.begin(), news.end());
  }
  if (asked.size() > first.missing_options().size())
    throw Error(first.code(), text, first.file(), first.tensor()).with_missing_options(std::move(asked));
}

}  // namespace

Conversion prepare(const std::filesystem::path& input, const std::filesystem::path& output,
                   const ConvertOptions& options, const RunOptions& run, CopyReading reading, Ranks& ranks,
                   ConsumedFiles* consumed) {
  try {
    return prepare_once(input, output, options, run, reading, ranks, consumed);
  } catch (const Error& error) {
    // Ranks would each have to read the source again.
    if (ranks.size() == 1) ask_at_once(error, input, output, options, run);
    throw;
  }
}

Conversion prepare_in_memory(const SourceOpener& open, const ConvertOptions& options, const RunOptions& run,
                             bool has_values) {
  Conversion conversion{.input = {}, .output = {}, .options = options, .run = run};
  open_ends(conversion, open);
  const std::unique_ptr<Ranks> alone = make_single_rank();
  conversion.plan = make_shared_plan(conversion, *alone);
  add_notes(conversion);
  for (const std::string& note : conversion.plan.notes) tell_note(run, "{}", note);
  if (!has_values) return conversion;
  settle_copies(conversion, CopyReading::Whole, *alone);
  check_master_weights(run, conversion.source, options.from);
  return conversion;
}

}  // namespace glu_ckpt
