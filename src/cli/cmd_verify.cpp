#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_verify(const Options& options) {
  const Verdict verdict = verify(options.input, options.output, options.verify, Session(options).run());
  print_out(options.json ? report::verdict_json(verdict) + "\n" : report::verdict_text(verdict));
  return verdict.equal ? ExitStatus::Done : ExitStatus::Differs;
}

}  // namespace glu_ckpt::cli
