/// The one catch: an Error becomes its message on stderr and its exit status.

#include "cli/run.hpp"
#include "core/fail.hpp"

int main(int argc, char** argv) {
  using namespace glu_ckpt;
  cli::prepare_process();
  cli::Options options;
  try {
    return static_cast<int>(cli::parse_options(argc, argv, options) ? options.execute(options) : ExitStatus::Done);
  } catch (...) {
    return static_cast<int>(
        cli::report_error("glu-ckpt", current_error(), options, cli::wants_json(argc, argv), {argv + 1, argv + argc}));
  }
}
