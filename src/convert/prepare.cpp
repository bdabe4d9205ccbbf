/// From paths and options to a proved plan.

#include <fmt/format.h>

#include "convert/check_output.hpp"
#include "convert/conversion.hpp"
#include "core/fail.hpp"
#include "plan/plan_bytes.hpp"
#include "verify/run_experts.hpp"

namespace glu_ckpt {
namespace {

Plan make_proved_plan(const Conversion& conversion) {
  const Source& source = *conversion.source.source;
  check_output_is_no_source(conversion.output, source);
  const ConvertOptions& options = conversion.options;
  Plan plan = with_place(source, [&] {
    return make_plan(source.inventory(), conversion.source.recognition,
                     {options.to, options.max_shard_bytes, options.force, conversion.format != source.format()});
  });
  check_plan(source.inventory(), plan);
  if (!plan.dropped.empty())
    plan.notes.push_back(fmt::format("{} tensors of the optimizer are left out", plan.dropped.size()));
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

Format target_format(const std::filesystem::path& output, const ConvertOptions& options, const Source& source) {
  const std::string suffix = output.extension().string();
  const bool torch = suffix == ".pt" || suffix == ".pth" || suffix == ".bin";
  const std::optional<Format> named = suffix == ".safetensors" ? std::optional(Format::Safetensors)
                                      : torch                  ? std::optional(Format::Torch)
                                                               : std::nullopt;
  if (named && options.format && *named != *options.format)
    fail(ErrorCode::Usage, {output.string(), {}}, "{}: a name that ends in {} is a {} file, but --format says {}",
         output.string(), suffix, to_string(*named), to_string(*options.format));
  return options.format ? *options.format : named.value_or(source.format());
}

Conversion prepare(const std::filesystem::path& input, const std::filesystem::path& output,
                   const ConvertOptions& options, const RunOptions& run, Ranks& ranks) {
  at_first_rank(ranks, [&] { check_output(input, output, options); });
  Conversion conversion{.input = input, .output = output, .options = options, .run = run};
  together(ranks, [&] {
    // A GPU that was named opens while the source is read; for "auto" the plan decides.
    if (run.device != "auto") conversion.backend = open_backend(run, 0);
    conversion.source = open_checkpoint(input, options.from);
    conversion.format = target_format(output, options, *conversion.source.source);
  });
  conversion.plan = make_shared_plan(conversion, ranks);
  together(ranks, [&] {
    if (!conversion.backend) conversion.backend = open_backend(run, gathered_bytes(conversion.plan));
  });
  at_first_rank(ranks, [&] {
    for (const std::string& note : conversion.plan.notes) tell_note(run, "{}", note);
  });
  return conversion;
}

void check_evidence(const Conversion& conversion) {
  check_master_weights(conversion.run, conversion.source, conversion.options.from);
  if (conversion.options.proof != ProofMode::Forward) return;
  require_known_glu(conversion.source, conversion.options.from.option_prefix);
  (void)forward_options(conversion.options.compute, {.seed = conversion.options.seed}, conversion.run,
                        conversion.source, conversion.source);
}

}  // namespace glu_ckpt
