#include <fmt/format.h>

#include "cli/session.hpp"
#include "core/fail.hpp"
#include "core/json.hpp"

namespace glu_ckpt::cli {
namespace {

/// "megatron-dist, grouped, contiguous, shared expert interleaved:32, optimizer contiguous".
std::string stamped_text(const Stamped& stamped) {
  std::string text = stamped.naming;
  if (stamped.experts != "none") text += ", " + stamped.experts;
  text += ", " + stamped.glu;
  if (!stamped.shared_glu.empty()) text += ", shared expert " + stamped.shared_glu;
  if (!stamped.optimizer_glu.empty()) text += ", optimizer " + stamped.optimizer_glu;
  return text;
}

ExitStatus remove_stamp(const Options& options, StampMode mode) {
  if (options.from.glu || options.from.shared_glu || options.from.optimizer_glu || options.from.naming)
    fail(ErrorCode::Usage, {}, "stamp --remove takes the recorded layout out; it goes with no layout to record");
  const Unstamped found = unstamp(options.input, mode);
  const std::string file = found.file.string();
  if (options.json)
    print_out(options, JsonWriter()
                               .begin_object()
                               .field("path", options.input)
                               .field("file", file)
                               .field("removed", found.was_there && mode == StampMode::Write)
                               .field("dry_run", mode == StampMode::DryRun)
                               .end_object()
                               .text() +
                           "\n");
  else if (!options.quiet)
    print_out(options, !found.was_there            ? fmt::format("{}: has no recorded layout\n", options.input)
                       : mode == StampMode::DryRun ? fmt::format("{}: would take the layout out\n", file)
                                                   : fmt::format("{}: took the layout out\n", file));
  return ExitStatus::Done;
}

}  // namespace

ExitStatus cmd_stamp(const Options& options) {
  const StampMode mode = options.stamp_dry_run ? StampMode::DryRun : StampMode::Write;
  if (options.remove_stamp) return remove_stamp(options, mode);
  SourceAnswers answers = options.from;
  answers.option_prefix = "--";
  const Stamped stamped = stamp(options.input, answers, mode);
  const Session session(options);
  for (const std::string& warning : stamped.warnings) session.run().observer->warn(warning);
  const std::string file = stamped.file.string();
  if (options.json)
    print_out(options, JsonWriter()
                               .begin_object()
                               .field("path", options.input)
                               .field("naming", stamped.naming)
                               .field("experts", stamped.experts)
                               .field("glu", stamped.glu)
                               .field("shared_glu", stamped.shared_glu)
                               .field("optimizer_glu", stamped.optimizer_glu)
                               .field("file", file)
                               .field("dry_run", mode == StampMode::DryRun)
                               .end_object()
                               .text() +
                           "\n");
  else if (!options.quiet)
    print_out(options, fmt::format("{}: {} {}; `glu-ckpt stamp {} --remove` takes it out\n", file,
                                   mode == StampMode::DryRun ? "would record" : "recorded", stamped_text(stamped),
                                   options.input));
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
