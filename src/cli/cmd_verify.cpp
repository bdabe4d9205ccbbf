#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

int cmd_verify(const Options& options) {
  const Verdict verdict = verify(options.input, options.output, options.verify, Session(options).run());
  print_out(options.json ? report::verdict_json(verdict) + "\n" : report::verdict_text(verdict));
  constexpr int kExitDiffers = 1;
  return verdict.equal ? 0 : kExitDiffers;
}

}  // namespace glu_ckpt::cli
