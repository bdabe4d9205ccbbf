#pragma once
/// Measures on a sample how fast a conversion would go.

#include <filesystem>
#include <optional>

#include "glu_ckpt/execute.hpp"

namespace glu_ckpt {

struct ProbedRate {
  /// The bytes that were read, hashed and written.
  i64 bytes = 0;
  double seconds = 0;
};

/// Converts ranges spread evenly over the plan, for so many seconds at the most, as execute() would, into a file
/// without a name in `directory`, which is gone afterwards. Nothing where the filesystem has no such file, or no space
/// for one. What is in the page cache counts as it is.
std::optional<ProbedRate> probe_rate(const Plan& plan, const Source& source, const std::filesystem::path& directory,
                                     const Backend& backend, const ExecuteOptions& options, double seconds);

}  // namespace glu_ckpt
