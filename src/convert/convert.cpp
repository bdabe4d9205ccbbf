/// The public calls, and a conversion as its passes.

#include <fmt/format.h>

#include <algorithm>

#include "convert/check_output.hpp"
#include "convert/consume.hpp"
#include "convert/parts.hpp"
#include "convert/passes.hpp"
#include "convert/staging.hpp"
#include "core/fail.hpp"
#include "core/peak_memory.hpp"
#include "core/readable.hpp"
#include "io/consumed_files.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/file_backed.hpp"
#include "io/file_names.hpp"
#include "io/filesystem.hpp"
#include "io/staged_dir.hpp"
#include "model/known_orders.hpp"
#include "verify/run_experts.hpp"

namespace glu_ckpt {
namespace {

i64 bytes_to_clone(const Conversion& conversion) {
  try {
    return choose_clones(conversion).bytes();
  } catch (const Error& error) {
    // A full disk is part of the answer: how much is needed and how much is free.
    if (error.code() != ErrorCode::NoSpace) throw;
    return 0;
  }
}

std::optional<ProbedRate> probe(const Conversion& conversion) {
  constexpr double kSeconds = 0.75;
  const Source& source = *conversion.source.source;
  // Nobody is told of a trial's progress, but it can be stopped.
  RunOptions silent = conversion.run;
  silent.observer = nullptr;
  Stage stage(silent, "", 0);
  ExecuteOptions execution = stage.execute_options();
  const ModelLeaves leaves(source.inventory(), conversion.source.recognition);
  if (conversion.options.proof != ProofMode::None) execution.source_leaves = &leaves;
  return probe_rate(conversion.plan, source, directory_of(output_name(conversion.output)), *conversion.backend,
                    execution, kSeconds);
}

/// Refuses what creating the output would: files that the format cannot hold, and a directory that takes no new ones.
void check_can_create(const Conversion& conversion) {
  const OutputOptions options = output_options(conversion, make_record(conversion, std::nullopt));
  (void)make_output_format(options, conversion.plan.outputs);
  const std::filesystem::path output = output_name(conversion.output);
  // Not every file system has files without a name. A directory of a name of its own is in nobody's way if it stays.
  if (File::unnamed(directory_of(output), false).is_open()) return;
  const std::filesystem::path tried = directory_of(output) / fmt::format(".{}.plan", output.filename().string());
  if (make_directory(tried)) (void)remove_empty_directory(tried);
}

/// Makes the refusals about running the experts; they need no bytes.
void check_forward(const Conversion& conversion) {
  require_known_glu(conversion.source, conversion.options.from.option_prefix);
  (void)forward_options(conversion.options.compute, {.seed = conversion.options.seed}, conversion.run,
                        conversion.source, conversion.source);
}

/// Makes the refusals that need bytes of the source, or a look at what its experts compute, before anything is written.
void check_evidence(const Conversion& conversion) {
  // The run that removed files of the source has made it.
  const bool is_made = conversion.consumed != nullptr && conversion.consumed->has_removed();
  if (!is_made && std::ranges::any_of(conversion.source.recognition.blocks, &ExpertBlock::is_optimizer_state))
    check_master_weights(conversion.run, conversion.source, conversion.options.from);
  if (conversion.options.proof == ProofMode::Forward) check_forward(conversion);
}

/// A part that is started again goes on.
ConvertOptions with_resume(ConvertOptions options) {
  options.resume |= options.part.of > 0;
  return options;
}

Converted convert_with(const std::filesystem::path& source, const std::filesystem::path& output,
                       const ConvertOptions& given, const RunOptions& run, Ranks& ranks) {
  const ConvertOptions options = with_resume(given);
  const SourceWatch watch(source, output, options);
  if (watch.files() != nullptr && !watch.files()->was_loaded())
    if (std::optional<Converted> consumed = find_consumed(source, output, options, run, true))
      return *std::move(consumed);
  Conversion conversion = prepare(source, output, options, run, CopyReading::Whole, ranks, watch.files());
  std::optional<Converted> complete;
  at_first_rank(ranks, [&] {
    check_evidence(conversion);
    if (options.resume && !options.overwrite) complete = find_complete(conversion);
  });
  const bool is_complete = !ranks.broadcast(std::vector<std::byte>(complete ? 1 : 0)).empty();
  Converted converted = is_complete ? std::move(complete).value_or(Converted()) : run_conversion(conversion, ranks);
  converted.plan = std::move(conversion.plan);
  converted.loads_in = std::move(conversion.loads_in);
  converted.warnings.insert(converted.warnings.begin(), conversion.warnings.begin(), conversion.warnings.end());
  return converted;
}

/// Says what `convert --resume` would go on with, or refuses as that does.
void tell_of_earlier_run(const Conversion& conversion, i64 bytes_to_clone) {
  const std::filesystem::path staging = partial_of(output_name(conversion.output));
  StagedDir::check_resumable(staging, identify_output(conversion, bytes_to_clone).fingerprint);
  if (const i64 done = bytes_done_before(conversion, staging); done > 0)
    tell_note(conversion.run, "--resume: an earlier run wrote {:.1f}% of {}",
              100.0 * static_cast<double>(done + bytes_to_clone) / static_cast<double>(conversion.plan.bytes),
              size_text(conversion.plan.bytes));
}

}  // namespace

std::string_view to_string(const Proof& proof) {
  if (const auto* digest = std::get_if<ProvedByDigest>(&proof)) return digest->readback ? "readback" : "digest";
  if (std::holds_alternative<ProvedBySample>(proof)) return "sample";
  return std::holds_alternative<ProvedByForward>(proof) ? "forward" : "";
}

Converted run_conversion(const Conversion& conversion, Ranks& ranks) {
  const Source& source = *conversion.source.source;
  const ProofMode proof = conversion.options.proof;
  const ConvertOptions::Part& part = conversion.options.part;
  // A process that reads all of the source checks it as it passes. Files that are removed on the way are checked
  // before.
  const bool in_passing = ranks.size() == 1 && part.of == 0 && !conversion.options.consume_source;
  at_first_rank(ranks, [&] {
    if (conversion.options.reflink == Reflink::Always) check_reflink(conversion, part.of > 0 ? 2 : ranks.size());
    // One part reads all of it for those.
    if (part.number > 1 || in_passing) return;
    if (conversion.consumed == nullptr || !conversion.consumed->has_removed())
      check_contents(conversion.run, source, "checking source");
  });
  together(ranks, [&] { conversion.backend->ready(); });
  // Running the experts reads the source again, where it is not larger than memory.
  const FileBacked* const files = source.file_backed();
  if (files != nullptr && proof == ProofMode::Forward) files->keep_in_cache();

  if (part.of > 0) return run_part(conversion);
  if (conversion.options.consume_source) check_consuming_room(conversion);
  ClonePlan clones = ranks.size() > 1 ? ClonePlan() : choose_clones(conversion);
  const ExpectedOutput expected(conversion, !clones.empty() && proof == ProofMode::Digest);
  Staging staging(conversion, expected, clones, ranks);
  std::optional<Consumer> consumer;
  Published published;
  i64 bytes_written = 0;
  std::vector<std::string> warnings;
  try {
    if (!clones.empty()) clone_pass(conversion, staging, clones);
    if (conversion.options.consume_source) consumer.emplace(conversion, expected, staging);
    Consumer* const consumes = consumer ? &*consumer : nullptr;
    if (in_passing) watch_contents(source);
    const Moved mine = move_pass(conversion, expected, staging, clones, consumes, ranks);
    // A GPU that is released is lost to the whole process, and running the experts needs it again.
    if (proof != ProofMode::Forward) conversion.backend->release();
    together(ranks, [&] { staging.check_source_unchanged(); });
    if (in_passing) check_contents(conversion.run, source, "checking source");
    const Moved moved = ranks.size() == 1 ? mine : gather_pass(mine, staging, ranks);
    at_first_rank(ranks, [&] {
      if (std::string text = nans_text(conversion.plan, moved.nans); !text.empty()) {
        tell_warning(conversion.run, "{}", text);
        warnings.push_back(std::move(text));
      }
      published = prove_and_publish(conversion, expected, staging, clones, moved, consumes);
      bytes_written = staging.sink().bytes_written() + moved.bytes_written_elsewhere;
    });
  } catch (...) {
    staging.end_failed_pass();
  }
  return {.warnings = std::move(warnings),
          .proof = published.proof,
          .digest = has_unknown_glu(conversion.source.recognition) ? std::nullopt : published.digest,
          .bytes_written = bytes_written,
          .bytes_cloned = clones.bytes(),
          .was_complete = false,
          .device = conversion.backend->name()};
}

Converted convert(const std::filesystem::path& source, const std::filesystem::path& output,
                  const ConvertOptions& options, const RunOptions& run, Ranks* ranks) {
  if (ranks != nullptr) return convert_with(source, output, options, run, *ranks);
  const auto alone = make_single_rank();
  return convert_with(source, output, options, run, *alone);
}

ConversionPlan plan_conversion(const std::filesystem::path& source, const std::filesystem::path& output,
                               const ConvertOptions& given, const RunOptions& run) {
  const auto alone = make_single_rank();
  const ConvertOptions options = with_resume(given);
  const SourceWatch watch(source, output, options);
  if (watch.files() != nullptr && !watch.files()->was_loaded())
    if (std::optional<Converted> consumed = find_consumed(source, output, options, run, false)) {
      ConversionPlan done;
      done.plan = std::move(consumed->plan);
      done.loads_in = std::move(consumed->loads_in);
      done.device = std::move(consumed->device);
      return done;
    }
  Conversion conversion = prepare(source, output, options, run, CopyReading::Sample, *alone, watch.files());
  if (options.proof == ProofMode::Forward) check_forward(conversion);
  check_can_create(conversion);
  conversion.backend->ready();
  if (options.reflink == Reflink::Always) check_reflink(conversion, options.part.of > 0 ? 2 : 1);
  ConversionPlan planned;
  planned.device = conversion.backend->name();
  planned.bytes_cloned = bytes_to_clone(conversion);
  planned.bytes_written = conversion.plan.bytes - planned.bytes_cloned;
  const bool is_there = options.resume && !options.overwrite && may_be_complete(conversion);
  if (is_there)
    tell_note(run,
              "{} is there already, with the layout and the files of this run: `convert --resume` reads it and {}, and "
              "ends where both hold the same model",
              output.string(), source.string());
  else if (options.resume)
    tell_of_earlier_run(conversion, options.part.of > 0 ? 0 : planned.bytes_cloned);
  ExecuteOptions execution;
  execution.jobs = jobs_of(run);
  execution.memory_bytes = run.memory_bytes;
  planned.peak_memory = peak_memory() + planned_buffer_bytes(conversion.plan, *conversion.backend, execution);
  const DiskRoom room =
      options.consume_source ? consuming_room(conversion) : disk_room(conversion, planned.bytes_written);
  planned.disk_needed = room.needed;
  planned.disk_free = room.filesystem.free_bytes;
  planned.filesystem = room.filesystem.type;
  // A run that is resumed has some of it already.
  const bool has_some = given.resume || name_taken(partial_of(output_name(output)));
  if (!has_some && !room.is_enough())
    planned.disk_refusal = fmt::format("{}: {}; {}", output.string(), to_text(room), ways_to_room(conversion));
  // The probe reads all files of the source, and an earlier run may have removed some.
  const bool is_whole = conversion.consumed == nullptr || !conversion.consumed->has_removed();
  if (const auto rate = is_whole ? probe(conversion) : std::nullopt; rate && rate->bytes > 0)
    planned.estimated_seconds =
        rate->seconds * static_cast<double>(planned.bytes_written) / static_cast<double>(rate->bytes);
  planned.megatron_args = std::move(conversion.target.args.text);
  planned.plan = std::move(conversion.plan);
  planned.loads_in = std::move(conversion.loads_in);
  planned.warnings = std::move(conversion.warnings);
  return planned;
}

}  // namespace glu_ckpt
