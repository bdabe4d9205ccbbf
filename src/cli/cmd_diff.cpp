#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_diff(const Options& options) {
  const Session session(options);
  const Diff found = diff(options.input, options.output, options.diff, session.run());
  if (options.json)
    print_out(options, report::diff_json(found, session.warnings()) + "\n");
  else if (!options.quiet)
    print_out(options, report::diff_text(found, options.verbose));
  return found.equal ? ExitStatus::Done : ExitStatus::Differs;
}

}  // namespace glu_ckpt::cli
