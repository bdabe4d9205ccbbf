#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_diff(const Options& options) {
  const Session session(options);
  const Diff found = options.report_file.empty() ? diff(options.input, options.output, options.diff, session.run())
                                                 : write_report(options, session).diff.value();
  if (options.json)
    print_out(options, report::diff_json(found, session.warnings()) + "\n");
  else if (!options.quiet)
    print_out(options, report::diff_text(found, options.verbose));
  else if (const std::string text = report::diff_text(found, false); !found.equal)
    print_out(options, text.substr(0, text.find('\n') + 1));  // Why the status is not 0.
  return found.equal ? ExitStatus::Done : ExitStatus::Differs;
}

}  // namespace glu_ckpt::cli
