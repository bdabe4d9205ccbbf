#include <fmt/format.h>

#include <chrono>

#include "cli/session.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"
#include "core/peak_memory.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

void print_report(const Options& options, const report::Conversion& conversion) {
  if (options.json)
    print_out(options, report::conversion_json(conversion) + "\n");
  else if (!options.quiet)
    print_out(options, report::conversion_text(conversion));
}

}  // namespace

ExitStatus cmd_convert(const Options& options, Ranks* ranks) {
  const auto start = std::chrono::steady_clock::now();
  const Converted converted = convert(options.input, options.output, options.convert, Session(options).run(), ranks);
  if (ranks != nullptr && ranks->rank() != 0) return ExitStatus::Done;
  // A note has said so.
  if (!converted.pending.empty()) {
    if (options.json)
      print_out(options, JsonWriter().begin_object().field("pending", converted.pending).end_object().text() + "\n");
    return ExitStatus::Done;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  report::Conversion conversion;
  conversion.output = options.output;
  conversion.plan = &converted.plan;
  conversion.loads_in = converted.loads_in;
  conversion.warnings = converted.warnings;
  conversion.bytes_written = converted.bytes_written;
  conversion.bytes_cloned = converted.bytes_cloned;
  conversion.seconds = seconds.count();
  conversion.peak_memory = peak_memory();
  conversion.device = converted.device;
  conversion.digest = converted.digest;
  conversion.up_to_date = converted.was_complete;
  conversion.verified = to_string(converted.proof);
  if (const auto* sample = std::get_if<ProvedBySample>(&converted.proof)) conversion.sample = *sample;
  print_report(options, conversion);
  return ExitStatus::Done;
}

ExitStatus cmd_plan(const Options& options) {
  report::Conversion conversion;
  conversion.output = options.output;
  conversion.dry_run = true;
  try {
    const ConversionPlan planned =
        plan_conversion(options.input, options.output, options.convert, Session(options).run());
    conversion.plan = &planned.plan;
    conversion.loads_in = planned.loads_in;
    conversion.warnings = planned.warnings;
    conversion.bytes_written = planned.bytes_written;
    conversion.bytes_cloned = planned.bytes_cloned;
    conversion.peak_memory = planned.peak_memory + options.remote_memory_bytes;
    conversion.device = planned.device;
    conversion.disk_needed = planned.disk_needed;
    conversion.disk_free = planned.disk_free;
    conversion.filesystem = planned.filesystem;
    conversion.megatron_args = planned.megatron_args;
    conversion.estimated_seconds = planned.estimated_seconds;
    if (!planned.disk_refusal.empty()) conversion.refusals.push_back(planned.disk_refusal);
    print_report(options, conversion);
    if (!planned.disk_refusal.empty()) fail(ErrorCode::NoSpace, {options.output, {}}, "{}", planned.disk_refusal);
    return ExitStatus::Done;
  } catch (const Error& error) {
    // A refusal is what a plan is asked for, so it is part of the answer as well as the error.
    if (exit_status(error.code()) == ExitStatus::Refused && options.json) {
      conversion.refusals.emplace_back(error.what());
      print_out(options, report::conversion_json(conversion) + "\n");
    }
    throw;
  }
}

}  // namespace glu_ckpt::cli
