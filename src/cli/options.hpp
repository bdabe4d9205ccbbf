#pragma once
/// What the user asked for. CLI11 is seen only in options.cpp.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "glu_ckpt/execute.hpp"
#include "glu_ckpt/forward.hpp"
#include "glu_ckpt/plan.hpp"
#include "glu_ckpt/verify.hpp"
#include "ranks/ranks.hpp"

namespace glu_ckpt::cli {

enum class Command {
  Inspect,
  Convert,
  Plan,
  Verify,
  Digest,
  Check,
  Stamp,
  Forward,
  BenchKernels,
  BenchForward,
  BenchConvert,
  Doctor,
  Layouts
};
enum class VerifyMode { None, Digest, Readback, Forward };
enum class ReflinkMode { Auto, Always, Never };
enum class ProgressMode { Auto, Always, Never, Json };

/// Of running the experts: the command forward, verify --forward, convert --verify forward.
struct ForwardAnswers {
  /// The layer's label.
  std::string layer;
  /// The file that holds x, index and weights.
  std::string tokens;
  ActivationAnswers activation;
  bool fp32 = false;
  /// Of verify: whether to run the experts at all.
  bool verify = false;
};

/// Of the commands bench forward and bench convert.
struct BenchAnswers {
  /// Empty for all.
  std::string model;
  /// Per expert; empty for the usual ones.
  std::vector<i64> tokens;
  int rounds = 11;
  /// Where bench convert writes, and how much of a checkpoint.
  std::string dir = ".";
  i64 size_bytes = i64{1} << 30;
};

struct Options {
  Command command = Command::Inspect;
  std::string input;
  /// DST of convert and plan; B of verify; where forward writes y.
  std::string output;
  SourceAnswers from;
  /// What verify's B is.
  SourceAnswers other;
  TargetAnswers to;
  i64 max_shard_bytes = 5'000'000'000;
  i64 memory_bytes = i64{1} << 30;
  int jobs = 0;
  std::string device = "auto";
  BackendOptions backend;
  ForwardAnswers forward;
  /// Of verify; its seed is also that of the tokens.
  VerifySubset subset;
  BenchAnswers bench;
  /// Empty keeps the source's, or takes the one that DST's extension names.
  std::optional<Format> format;
  VerifyMode verify = VerifyMode::Digest;
  ReflinkMode reflink = ReflinkMode::Auto;
  ProgressMode progress = ProgressMode::Auto;
  bool dry_run = false;
  bool force = false;
  bool overwrite = false;
  /// Go on with what an earlier run left in DST.partial.
  bool resume = false;
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  /// Layout options as typed, for the record.
  std::map<std::string, std::string> typed;
};

/// Empty when help or the version was asked for and printed. Throws Usage. `program` is what help calls this program.
std::optional<Options> parse_options(int argc, const char* const* argv, const std::string& program = "glu-ckpt");

/// Bytes: "64MiB", "5GB" (decimal), "1G" (binary, as dd and rclone have it), "4096". Throws Usage.
i64 parse_size(const std::string& text);

int cmd_inspect(const Options& options);
int cmd_convert(const Options& options);
/// By all ranks together; rank 0 reports.
int cmd_convert(const Options& options, Ranks& ranks);
int cmd_plan(const Options& options);
int cmd_verify(const Options& options);
int cmd_digest(const Options& options);
int cmd_check(const Options& options);
int cmd_stamp(const Options& options);
int cmd_forward(const Options& options);
int cmd_bench_kernels(const Options& options);
int cmd_bench_forward(const Options& options);
int cmd_bench_convert(const Options& options);
int cmd_doctor(const Options& options);
int cmd_layouts(const Options& options);

}  // namespace glu_ckpt::cli
