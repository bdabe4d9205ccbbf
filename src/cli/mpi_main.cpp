/// glu-ckpt-mpi: the same commands, run by all ranks of an MPI program. Its catch is the other one beside main.cpp's.

#include <fmt/format.h>

#include <cstdlib>

#include "cli/run.hpp"
#include "cli/session.hpp"
#include "core/byte_fields.hpp"
#include "core/fail.hpp"
#include "ranks/mpi_ranks.hpp"

namespace {

using namespace glu_ckpt;

constexpr const char* kProgram = "glu-ckpt-mpi";

/// Makes a rank silent unless it fails, for another one prints the results.
cli::Options silent(cli::Options options) {
  options.quiet = true;
  options.verbose = false;
  options.progress = cli::ProgressMode::Never;
  return options;
}

/// Rank 0's number, at every rank.
i64 shared(Ranks& ranks, i64 number) {
  ByteWriter out;
  out.number(number);
  const auto bytes = ranks.broadcast(out.take());
  return ByteReader(bytes, "an exit status").number(0, static_cast<i64>(ExitStatus::Stopped));
}

ExitStatus run_ranks(Ranks& ranks, int argc, char** argv, cli::Options& options) {
  bool has_work = false;
  // Rank 0 first: what is wrong with the command line, or the help that was asked for, is printed once.
  at_first_rank(ranks, [&] { has_work = cli::parse_options(argc, argv, options, kProgram); });
  if (shared(ranks, has_work ? 1 : 0) == 0) return ExitStatus::Done;
  if (ranks.rank() != 0) {
    (void)cli::parse_options(argc, argv, options, kProgram);
    options = silent(options);
  }
  // Signals are watched to the end of the process: whatever starts the ranks ends those that are left once the first
  // has ended.
  if (options.command == "convert") cli::watch_signals();
  if (options.command == "convert") return cli::cmd_convert(options, &ranks);
  auto status = ExitStatus::Done;
  at_first_rank(ranks, [&] { status = options.execute(options); });
  return static_cast<ExitStatus>(shared(ranks, static_cast<i64>(status)));
}

std::string program_name(const Ranks& ranks) {
  return ranks.size() == 1 ? kProgram : fmt::format("{}: rank {}", kProgram, ranks.rank());
}

/// All ranks return the same status, so that whatever started them sees it, whichever rank's it looks at.
ExitStatus main_of_rank(MpiProgram& program, int argc, char** argv) {
  const bool json = cli::wants_json(argc, argv);
  const auto ranks = make_mpi_ranks();
  cli::Options options;
  try {
    return run_ranks(*ranks, argc, argv, options);
  } catch (const RankError& error) {
    if (error.rank() == ranks->rank()) cli::report_error(program_name(*ranks), error, options, json);
    return exit_status(error.code());
  } catch (...) {
    const ExitStatus status = cli::report_error(program_name(*ranks), current_error(), options, json);
    if (ranks->size() > 1) program.abort(static_cast<int>(status));
    return status;
  }
}

}  // namespace

int main(int argc, char** argv) {
  cli::prepare_process();
  // mpirun gives a rank a terminal of its own, whatever becomes of what it prints.
  const bool asks_for_colors = std::getenv("FORCE_COLOR") != nullptr || std::getenv("CLICOLOR_FORCE") != nullptr;
  if (!asks_for_colors) ::setenv("NO_COLOR", "1", 0);
  try {
    MpiProgram program(argc, argv);
    return static_cast<int>(main_of_rank(program, argc, argv));
  } catch (...) {
    return static_cast<int>(cli::report_error(kProgram, current_error(), {}, cli::wants_json(argc, argv)));
  }
}
