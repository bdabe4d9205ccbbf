/// The one catch: an Error becomes its message on stderr and its exit status.

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <new>
#include <string_view>

#include "cli/options.hpp"
#include "report/report.hpp"

namespace {

using namespace glu_ckpt;

constexpr int kExitDone = 0;

int run(const cli::Options& options) {
  switch (options.command) {
    case cli::Command::Inspect: return cli::cmd_inspect(options);
    case cli::Command::Convert:
    case cli::Command::Plan: return cli::cmd_convert(options);
    case cli::Command::Verify: return cli::cmd_verify(options);
    case cli::Command::Digest: return cli::cmd_digest(options);
    case cli::Command::Stamp: return cli::cmd_stamp(options);
    case cli::Command::Forward: return cli::cmd_forward(options);
    case cli::Command::BenchKernels: return cli::cmd_bench_kernels(options);
    case cli::Command::BenchForward: return cli::cmd_bench_forward(options);
    case cli::Command::BenchConvert: return cli::cmd_bench_convert(options);
    case cli::Command::Doctor: return cli::cmd_doctor(options);
    case cli::Command::Layouts: return cli::cmd_layouts(options);
  }
  return kExitDone;
}

int report_error(const Error& error, bool json) {
  if (json)
    fmt::print(stderr, "{}\n", report::error_json(error));
  else
    fmt::print(stderr, "glu-ckpt: error: {} [{}]\n", report::printable(error.what()), slug(error.code()));
  return exit_status(error.code());
}

/// Errors in the command line itself are reported as asked for, too.
bool wants_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--json") return true;
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  // A file size limit is an error to report, not a reason to vanish.
  std::signal(SIGXFSZ, SIG_IGN);
  const bool json = wants_json(argc, argv);
  try {
    const auto options = cli::parse_options(argc, argv);
    return options ? run(*options) : kExitDone;
  } catch (const Error& error) {
    return report_error(error, json);
  } catch (const std::bad_alloc&) {
    return report_error(Error(ErrorCode::NoMemory, "out of memory; a smaller --max-memory or fewer --jobs may help"),
                        json);
  } catch (const std::exception& error) {
    return report_error(Error(ErrorCode::Io, error.what()), json);
  }
}
