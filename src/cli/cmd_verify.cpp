#include "cli/session.hpp"
#include "core/fail.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

/// B is a digest: that of A is compared with it.
Verdict verify_digest(const Options& options, const Digest& expected, const RunOptions& run) {
  const VerifyOptions& asked = options.verify;
  if (asked.forward || !asked.subset.is_all())
    fail(ErrorCode::Usage, {},
         "{}: a digest is of a whole model; --forward, --layers, --sample and --part need a "
         "checkpoint in its place",
         options.output);
  Verdict verdict;
  verdict.a = digest(options.input, asked.a, run).digest;
  verdict.b = expected;
  verdict.in_both = verdict.compared = verdict.a.tensors;
  verdict.equal = verdict.a == verdict.b;
  return verdict;
}

/// One line that says why the status is not 0.
std::string why_different(const Verdict& verdict) {
  const std::string text = report::verdict_text(verdict, false);
  std::string line = text.substr(0, text.find('\n') + 1);
  if (!line.starts_with("equal")) return line;
  for (const LayerForward& layer : verdict.forward)
    if (!layer.ok()) return "forward: " + to_sentence(layer) + "\n";
  return line;
}

}  // namespace

ExitStatus cmd_verify(const Options& options) {
  const Session session(options);
  const std::optional<Digest> expected = parse_digest(options.output);
  if (!expected && (options.output.starts_with("gck1:") || options.output.starts_with("gck2:")))
    fail(ErrorCode::Usage, {}, "{}: is no digest as this version prints it: gck2:<32 hex digits>:<tensors>:<bytes>",
         options.output);
  const Verdict verdict = expected ? verify_digest(options, *expected, session.run())
                                   : verify(options.input, options.output, options.verify, session.run());
  if (options.json)
    print_out(options, report::verdict_json(verdict, session.warnings()) + "\n");
  else if (!options.quiet)
    print_out(options, report::verdict_text(verdict, options.verbose));
  else if (!verdict.equal)
    print_out(options, why_different(verdict));
  return verdict.equal ? ExitStatus::Done : ExitStatus::Differs;
}

}  // namespace glu_ckpt::cli
