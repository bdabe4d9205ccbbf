#pragma once
/// One conversion, from a proved plan to a committed output.

#include "cli/session.hpp"
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
};

/// Writes the output, or goes on with what an earlier run wrote, and proves it. Where it is stopped, or the machine
/// fails, what is done stays in DST.partial for --resume; after any other failure nothing stays.
Converted convert(const Options& options, const Opened& opened, const Plan& plan, Format format, Backend& backend);

}  // namespace glu_ckpt::cli
