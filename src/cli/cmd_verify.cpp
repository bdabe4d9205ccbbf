#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_verify(const Options& options) {
  const Verdict verdict = verify(options.input, options.output, options.verify, Session(options).run());
  if (options.json)
    print_out(report::verdict_json(verdict) + "\n");
  else if (!options.quiet)
    print_out(report::verdict_text(verdict, options.verbose));
  return verdict.equal ? ExitStatus::Done : ExitStatus::Differs;
}

}  // namespace glu_ckpt::cli
