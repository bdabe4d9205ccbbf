#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_inspect(const Options& options) {
  const Inspection found = inspect(options.input, options.from);
  print_out(options.json ? report::inspection_json(found) + "\n" : report::inspection_text(found));
  // What can be told was told; the exit status is the problem's.
  if (found.fault) throw Error(*found.fault);
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
