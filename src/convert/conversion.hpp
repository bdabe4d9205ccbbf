#pragma once
/// One conversion, from a proved plan to a committed output.

#include "cli/session.hpp"
#include "ranks/ranks.hpp"
#include "verify/sample_rows.hpp"

namespace glu_ckpt::cli {

struct Converted {
  /// Where the order of gate and up rows is known, so that it is layout-invariant, and unless --verify none.
  std::optional<Digest> digest;
  /// Without what was cloned.
  i64 bytes_written = 0;
  i64 bytes_cloned = 0;
  /// Where what was cloned was proved by the plan and a sample.
  std::optional<Sample> sample;
  /// An earlier run had finished; both sides were read for their digests.
  bool was_complete = false;
};

/// For --resume: what an earlier run wrote, if it had finished before it was stopped, so that DST is there. Nothing
/// where DST is not, or is to be replaced. Throws OutputExists where DST is not what this run would write: other
/// tensors, another layout, or another source's; ResumeMismatch, OutputBusy where DST.partial is another run's. Reads
/// all of both.
std::optional<Converted> find_complete(const Options& options, const Opened& opened, const Plan& plan, Format format,
                                       const Backend& backend);

/// Writes the output, or goes on with what an earlier run wrote, and proves it. Where it is stopped, or the machine
/// fails, what is done stays in DST.partial for --resume; after any other failure nothing stays. All ranks call it
/// together, with the same plan; rank 0 makes the output and commits it, and what it returns is of all of them.
Converted convert(const Options& options, const Opened& opened, const Plan& plan, Format format, Backend& backend,
                  Ranks& ranks);

}  // namespace glu_ckpt::cli
