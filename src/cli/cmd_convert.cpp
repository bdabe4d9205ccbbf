/// convert and plan: the way of the data from the first call to the last.

#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "convert/check_output.hpp"
#include "convert/choose_clones.hpp"
#include "convert/conversion.hpp"
#include "cli/session.hpp"
#include "core/fail.hpp"
#include "convert/probe.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/filesystem.hpp"
#include "plan/plan_bytes.hpp"
#include "report/report.hpp"
#include "report/tell.hpp"

namespace glu_ckpt::cli {
namespace {

namespace fs = std::filesystem;

/// The format of DST: as asked, or what its extension says, or the source's.
Format target_format(const Options& options, const Source& source) {
  const std::string suffix = fs::path(options.output).extension().string();
  const bool torch = suffix == ".pt" || suffix == ".pth" || suffix == ".bin";
  const std::optional<Format> named = suffix == ".safetensors" ? std::optional(Format::Safetensors)
                                      : torch                  ? std::optional(Format::Torch)
                                                               : std::nullopt;
  if (named && options.format && *named != *options.format)
    fail(ErrorCode::Usage, {options.output, {}}, "{}: a name that ends in {} is a {} file, but --format says {}",
         options.output, suffix, to_string(*named), to_string(*options.format));
  return options.format ? *options.format : named.value_or(source.format());
}

i64 peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return i64{1024} * usage.ru_maxrss;
}

std::string verified_text(VerifyMode mode, const Converted& converted) {
  if (mode == VerifyMode::Forward && !converted.was_complete) return "forward";
  if (converted.sample) return "sample";
  return mode == VerifyMode::Readback ? "readback" : "digest";
}

/// The plan, proved, with what the user should know about the source beside it.
Plan proved_plan(const Options& options, const Opened& opened) {
  check_output_is_no_source(options, *opened.source);
  const Inventory& have = opened.source->inventory();
  Plan plan = with_place(*opened.source, [&] {
    return make_plan(have, opened.recognition,
                     {options.to, options.max_shard_bytes, options.force,
                      target_format(options, *opened.source) != opened.source->format()});
  });
  check_plan(have, plan);
  if (!plan.dropped.empty())
    plan.notes.push_back(fmt::format("{} tensors of the optimizer are left out", plan.dropped.size()));
  for (const std::string& name : opened.source->left_out())
    plan.notes.push_back(fmt::format("{} is not part of the checkpoint and is left behind", name));
  return plan;
}

void print_report(const Options& options, const report::Conversion& conversion) {
  if (options.json) {
    print_out(report::conversion_json(conversion) + "\n");
    return;
  }
  if (!options.quiet)
    for (const std::string& note : conversion.plan->notes) report::tell("glu-ckpt: note: {}\n", note);
  if (!options.quiet) print_out(report::conversion_text(conversion));
}

/// A refusal is what a plan is asked for, so it is part of the answer as well as the error.
int report_refusal(const Options& options, const Error& error) {
  constexpr int kExitRefused = 4;
  if (exit_status(error.code()) == kExitRefused && options.json) {
    report::Conversion conversion;
    conversion.output = options.output;
    conversion.dry_run = true;
    conversion.refusals.push_back(error.what());
    print_out(report::conversion_json(conversion) + "\n");
  }
  throw error;
}

/// Tensors, headers, the source's other files, and while the run lasts the sums of the files' hashes.
void add_disk(const Options& options, const Opened& opened, const Plan& plan, report::Conversion& conversion) {
  constexpr i64 kHeaderBytes = 256, kSumsShare = 16;
  const i64 written = conversion.bytes_written;
  i64 bytes = written + written / kSumsShare + kHeaderBytes * std::ssize(plan.outputs);
  for (const ExtraFile& extra : opened.source->extra_files()) bytes += File::open_read(extra.path).size();
  const FilesystemInfo filesystem = filesystem_of(directory_of(output_path(options)));
  conversion.disk_needed = bytes;
  conversion.disk_free = filesystem.free_bytes;
  conversion.filesystem = filesystem.type;
}

i64 bytes_to_clone(const Options& options, const Opened& opened, const Plan& plan) {
  try {
    return choose_clones(options, *opened.source, plan, target_format(options, *opened.source)).bytes();
  } catch (const Error& error) {
    // That is an answer, too: how much is needed and how much is free.
    if (error.code() != ErrorCode::NoSpace) throw;
    return 0;
  }
}

std::optional<ProbedRate> probe(const Options& options, const Opened& opened, const Plan& plan,
                                const Backend& backend) {
  constexpr double kSeconds = 2;
  watch_signals();
  report::Progress progress(report::ProgressStyle::None, "", 0);
  ExecuteOptions execution = execute_options(options, progress);
  const ModelLeaves leaves(opened.source->inventory(), opened.recognition);
  if (options.verify != VerifyMode::None) execution.source_leaves = &leaves;
  return probe_rate(plan, *opened.source, directory_of(output_path(options)), backend, execution, kSeconds);
}

/// Made and proved by rank 0 alone.
Plan shared_plan(const Options& options, const Opened& opened, Ranks& ranks) {
  Plan plan;
  at_first_rank(ranks, [&] { plan = proved_plan(options, opened); });
  if (ranks.size() == 1) return plan;
  const std::vector<std::byte> bytes = ranks.broadcast(ranks.rank() == 0 ? plan_bytes(plan) : std::vector<std::byte>());
  together(ranks, [&] {
    if (ranks.rank() == 0) return;
    plan = parse_plan_bytes(bytes);
    const i64 tensors = std::ssize(opened.source->inventory().tensors);
    for (const Move& move : plan.moves)
      if (static_cast<i64>(move.src) >= tensors)
        fail(ErrorCode::SourceChanged, {options.input, {}},
             "{}: has {} tensors here, and more at rank 0; all ranks must see the same files", options.input, tensors);
  });
  return plan;
}

}  // namespace

int cmd_convert(const Options& options, Ranks& ranks) {
  at_first_rank(ranks, [&] { check_output(options); });
  watch_signals();
  const auto start = std::chrono::steady_clock::now();
  // A GPU that was named opens while the source is read; auto is decided by the plan.
  std::unique_ptr<Backend> backend;
  Opened opened;
  together(ranks, [&] {
    if (options.device != "auto") backend = open_backend(options, 0);
    opened = open_model(options.input, options.from);
  });
  const Plan plan = shared_plan(options, opened, ranks);
  const Format format = target_format(options, *opened.source);
  std::optional<Converted> complete;
  together(ranks, [&] {
    if (!backend) backend = open_backend(options, gathered_bytes(plan));
  });
  at_first_rank(ranks, [&] {
    check_twin_orders(options, opened, options.from);
    if (options.verify == VerifyMode::Forward) {
      require_known_glu(opened, "--from-glu");
      // What is wrong with running the source's experts shows before anything is written.
      (void)forward_options(options, opened, opened);
    }
    complete = find_complete(options, opened, plan, format, *backend);
  });
  const bool is_complete = !ranks.broadcast(std::vector<std::byte>(complete ? 1 : 0)).empty();
  const Converted converted =
      is_complete ? complete.value_or(Converted()) : convert(options, opened, plan, format, *backend, ranks);
  if (ranks.rank() != 0) return 0;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  report::Conversion conversion{
      options.output,   &plan, false, converted.bytes_written, seconds.count(), peak_memory(), backend->name(),
      converted.digest, {},    {}};
  if (options.verify != VerifyMode::None) conversion.verified = verified_text(options.verify, converted);
  conversion.bytes_cloned = converted.bytes_cloned;
  if (converted.sample) {
    conversion.rows_sampled = converted.sample->rows;
    conversion.bytes_sampled = converted.sample->bytes;
  }
  print_report(options, conversion);
  return 0;
}

int cmd_convert(const Options& options) {
  const auto alone = make_single_rank();
  return cmd_convert(options, *alone);
}

int cmd_plan(const Options& options) {
  try {
    check_output(options);
    const Opened opened = open_model(options.input, options.from);
    const Plan plan = proved_plan(options, opened);
    const auto backend = open_backend(options, gathered_bytes(plan));
    backend->ready();
    report::Conversion conversion{options.output, &plan, true, 0, 0, 0, backend->name(), {}, {}, {}};
    conversion.bytes_cloned = bytes_to_clone(options, opened, plan);
    conversion.bytes_written = plan.bytes - conversion.bytes_cloned;
    ExecuteOptions execution;
    execution.jobs = options.jobs;
    execution.memory_bytes = options.memory_bytes;
    conversion.peak_memory = peak_memory() + planned_buffer_bytes(plan, *backend, execution);
    add_disk(options, opened, plan, conversion);
    if (const auto rate = probe(options, opened, plan, *backend); rate && rate->bytes > 0)
      conversion.estimated_seconds =
          rate->seconds * static_cast<double>(conversion.bytes_written) / static_cast<double>(rate->bytes);
    print_report(options, conversion);
    return 0;
  } catch (const Error& error) {
    return report_refusal(options, error);
  }
}

}  // namespace glu_ckpt::cli
