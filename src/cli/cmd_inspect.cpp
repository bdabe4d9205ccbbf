#include "cli/session.hpp"
#include "core/fail.hpp"
#include "report/report.hpp"
#include "report/text/tell.hpp"

namespace glu_ckpt::cli {
namespace {

std::vector<ListedTensor> chosen_tensors(const Inspection& found, const Options& options) {
  std::vector<ListedTensor> tensors = list_tensors(found, options.tensors);
  if (tensors.empty() && !options.tensors.empty())
    fail(ErrorCode::Usage, {options.input, {}}, "{}: --tensors: none of its {} tensors fits '{}'", options.input,
         found.source->inventory().tensors.size(), options.tensors);
  return tensors;
}

}  // namespace

ExitStatus cmd_inspect(const Options& options) {
  const Inspection found = inspect(options.input, options.from);
  const Session session(options);
  for (const std::string& warning : found.warnings) session.run().observer->warn(warning);
  std::optional<std::vector<ListedTensor>> tensors;
  if (options.list_tensors) tensors = chosen_tensors(found, options);
  if (options.json)
    print_out(options, report::inspection_json(found, tensors) + "\n");
  else if (tensors)
    print_out(options, report::tensors_text(found, *tensors));
  else if (!options.quiet)
    print_out(options, report::inspection_text(found));
  // All that could be read is printed by now; the exit status is the problem's.
  if (found.fault) throw Error(*found.fault);
  // Without the report, the reason of the status.
  if (options.strict && (options.quiet || tensors) && !options.json)
    for (const std::string& problem : found.problems)
      report::tell("glu-ckpt: {} {}: {}\n", report::painted(report::Paint::Error, "error:"), options.input,
                   report::printable(problem));
  return options.strict && !found.problems.empty() ? ExitStatus::BrokenInput : ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
