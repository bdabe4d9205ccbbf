#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

int cmd_verify(const Options& options) {
  const Opened a = open_model(options.input, options.from);
  const Opened b = open_model(options.output, options.other);
  require_known_glu(a, "--from-glu");
  require_known_glu(b, "--to-glu");
  watch_signals();
  const auto backend = open_backend(options, 0);
  backend->ready();
  std::unique_ptr<MlpRunner> runner;
  VerifyForwardOptions forward;
  if (options.forward.verify) {
    runner = open_runner(options);
    forward = forward_options(options, a, b);
  }
  if (options.subset.is_all()) {
    check_contents(options, *a.source, "checking A");
    check_contents(options, *b.source, "checking B");
  }
  check_twin_orders(options, a, options.from);
  check_twin_orders(options, b, options.other);
  Verdict verdict;
  {
    report::Progress progress(progress_style(options), "verify", verify_bytes(a.model(), b.model(), options.subset));
    verdict = verify(a.model(), b.model(), *backend, execute_options(options, progress), options.subset);
  }
  if (runner) {
    verdict.forward = run_forward(options, a, b, *runner, forward);
    for (const LayerForward& layer : verdict.forward) verdict.equal = verdict.equal && layer.ok();
  }
  print_out(options.json ? report::verdict_json(verdict) + "\n" : report::verdict_text(verdict));
  constexpr int kExitDiffers = 1;
  return verdict.equal ? 0 : kExitDiffers;
}

}  // namespace glu_ckpt::cli
