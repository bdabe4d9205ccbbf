#include "cli/session.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {

ExitStatus cmd_layouts(const Options& options) {
  const auto rows = naming_summaries();
  print_out(options.json ? report::layouts_json(rows) + "\n" : report::layouts_text(rows));
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
