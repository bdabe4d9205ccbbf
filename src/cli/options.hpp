#pragma once
/// The user's answers as one value.

#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/convert.hpp"
#include "glu_ckpt/diff.hpp"
#include "glu_ckpt/error.hpp"
#include "glu_ckpt/html_report.hpp"
#include "report/text/tell.hpp"

namespace glu_ckpt::cli {

enum class ProgressMode { Auto, Always, Never, Json };

/// The answers of the commands bench forward and bench convert.
struct BenchAnswers {
  /// Empty for all.
  std::string model;
  /// The tokens per expert; empty for the usual numbers.
  std::vector<i64> tokens;
  int rounds = 11;
  bool backward = false;
  /// The directory that bench convert writes to, and how much of a checkpoint it writes.
  std::string dir = ".";
  i64 size_bytes = i64{1} << 30;
};

/// Whoever runs a command inside a process of their own, such as the Python module: they follow and stop it themselves,
/// and get what it would print to stdout.
struct Caller {
  Observer* observer = nullptr;
  const StopToken* stop = nullptr;
  std::string out;
};

struct Options;
using Execute = ExitStatus (*)(const Options&);

struct Options {
  /// "bench kernels".
  std::string command;
  Execute execute = nullptr;
  /// The words of the command line.
  std::vector<std::string> words;
  /// The paths as typed: PATH, SRC, A or CKPT; DST or B. For programs that match results with what they asked for.
  std::string source;
  std::string destination;
  /// PATH, SRC or A.
  std::string input;
  /// DST or B.
  std::string output;
  /// The user's answers about `input`; a part of the options of each call below, too.
  SourceAnswers from;
  ConvertOptions convert;
  VerifyOptions verify;
  DiffOptions diff;
  HtmlReportOptions report;
  std::string report_file;
  bool overwrite_report = false;
  ForwardRequest forward;
  /// The answers of whichever command runs experts; a part of the options of each call that does.
  ExpertCompute compute;
  BenchAnswers bench;
  /// The options of the run; a Session adds an observer and a token.
  RunOptions run;
  /// The bytes of --max-memory that are kept for reading from addresses; `run` has the rest.
  i64 remote_memory_bytes = 0;
  ProgressMode progress = ProgressMode::Auto;
  /// inspect: lists tensors, of this pattern; empty for all.
  bool list_tensors = false;
  std::string tensors;
  /// inspect, check, digest: the checkpoints, or the file that lists digests and paths; help: the words.
  std::vector<std::string> paths;
  std::string check_file;
  bool stamp_dry_run = false;
  bool remove_stamp = false;
  /// Problems that inspect finds are its exit status.
  bool strict = false;
  bool dry_run = false;
  bool manual = false;
  /// help: a page of docs/.
  std::string page;
  report::Colors color = report::Colors::Auto;
  /// completion: "bash", ...
  std::string shell;
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  /// It is null where the command has the process to itself: then it uses stdout, stderr and signals.
  Caller* caller = nullptr;
};

/// False when help or the version was asked for and printed. Throws Usage and what the kinds of values throw; `options`
/// then has the command and the paths as far as they were understood. `program` is what help calls this program.
bool parse_options(int argc, const char* const* argv, Options& options, const std::string& program = "glu-ckpt");

ExitStatus cmd_inspect(const Options& options);
/// All ranks call it together, where there are any; rank 0 reports.
ExitStatus cmd_convert(const Options& options, Ranks* ranks = nullptr);
ExitStatus cmd_plan(const Options& options);
ExitStatus cmd_verify(const Options& options);
ExitStatus cmd_diff(const Options& options);
ExitStatus cmd_report(const Options& options);
ExitStatus cmd_digest(const Options& options);
ExitStatus cmd_check(const Options& options);
ExitStatus cmd_stamp(const Options& options);
ExitStatus cmd_forward(const Options& options);
ExitStatus cmd_bench_kernels(const Options& options);
ExitStatus cmd_bench_forward(const Options& options);
ExitStatus cmd_bench_convert(const Options& options);
ExitStatus cmd_doctor(const Options& options);
ExitStatus cmd_layouts(const Options& options);

}  // namespace glu_ckpt::cli
