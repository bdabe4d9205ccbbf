/// glu-ckpt-mpi: the same commands, run by all ranks of an MPI program. Its catch is the other one beside main.cpp's.

#include <fmt/format.h>

#include "cli/run.hpp"
#include "cli/session.hpp"
#include "core/byte_fields.hpp"
#include "core/current_error.hpp"
#include "ranks/mpi_ranks.hpp"

namespace {

using namespace glu_ckpt;

constexpr const char* kProgram = "glu-ckpt-mpi";

/// What one rank has to say is enough, unless it fails.
cli::Options silent(cli::Options options) {
  options.quiet = true;
  options.verbose = false;
  options.progress = cli::ProgressMode::Never;
  return options;
}

/// The status that a command returned at rank 0, at every rank.
int shared_status(Ranks& ranks, int status) {
  ByteWriter out;
  out.number(status);
  const auto bytes = ranks.broadcast(out.take());
  return static_cast<int>(ByteReader(bytes, "an exit status").number(0, 255));
}

int run_ranks(Ranks& ranks, int argc, char** argv) {
  std::optional<cli::Options> options;
  // Rank 0 first: what is wrong with the command line, or the help that was asked for, is printed once.
  at_first_rank(ranks, [&] { options = cli::parse_options(argc, argv, kProgram); });
  if (shared_status(ranks, options ? 1 : 0) == 0) return 0;
  if (ranks.rank() != 0) options = silent(cli::parse_options(argc, argv, kProgram).value());
  // From here to the end of the process: whatever starts the ranks ends those that are left once the first has ended.
  if (options->command == cli::Command::Convert) cli::watch_signals();
  if (options->command == cli::Command::Convert) return cli::cmd_convert(*options, &ranks);
  int status = 0;
  at_first_rank(ranks, [&] { status = cli::run(*options); });
  return shared_status(ranks, status);
}

std::string program_name(const Ranks& ranks) {
  return ranks.size() == 1 ? kProgram : fmt::format("{}: rank {}", kProgram, ranks.rank());
}

/// All ranks return the same status, so that whatever started them sees it, whichever rank's it looks at.
int main_of_rank(MpiProgram& program, int argc, char** argv) {
  const bool json = cli::wants_json(argc, argv);
  const auto ranks = make_mpi_ranks();
  try {
    return run_ranks(*ranks, argc, argv);
  } catch (const RankError& error) {
    if (error.rank() == ranks->rank()) cli::report_error(program_name(*ranks), error, json);
    return exit_status(error.code());
  } catch (...) {
    const int status = cli::report_error(program_name(*ranks), current_error(), json);
    if (ranks->size() > 1) program.abort(status);
    return status;
  }
}

}  // namespace

int main(int argc, char** argv) {
  cli::prepare_process();
  try {
    MpiProgram program(argc, argv);
    return main_of_rank(program, argc, argv);
  } catch (...) {
    return cli::report_error(kProgram, current_error(), cli::wants_json(argc, argv));
  }
}
