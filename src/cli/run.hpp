#pragma once
/// The functions that the programs glu-ckpt and glu-ckpt-mpi share.

#include <string>
#include <vector>

#include "cli/options.hpp"

namespace glu_ckpt::cli {

/// A word as a shell reads it.
std::string quoted(const std::string& word);

/// Prints the error of that call to stderr, as JSON if asked for, and returns its exit status. `program`: what a line
/// of text begins with. Where options are missing, the words of the command line are printed with those behind them.
ExitStatus report_error(const std::string& program, const Error& error, const Options& options, bool json,
                        const std::vector<std::string>& words = {});

/// Executes the command for each of the paths. Where there are several, an error is told and the others go on; returns
/// the greatest status.
ExitStatus for_each_path(const Options& options, Execute execute);

/// Returns whether the command line asks for JSON. Errors in the command line itself are reported as asked for, too.
bool wants_json(int argc, const char* const* argv);

/// Prepares the whole process, before anything else.
void prepare_process();

}  // namespace glu_ckpt::cli
