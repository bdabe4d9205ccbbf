#pragma once
/// Whether DST may be written.

#include <filesystem>

#include "cli/options.hpp"

namespace glu_ckpt::cli {

/// DST without the trailing slash that it may be given with.
inline std::filesystem::path output_path(const Options& options) {
  const std::filesystem::path output = options.output;
  return output.has_filename() ? output : output.parent_path();
}

/// Throws OutputExists, OutputInsideSource, NotFound. Reads names only.
void check_output(const Options& options);

/// The files may lie elsewhere than the path says: a snapshot's symlinks point into a shared cache.
/// Throws OutputInsideSource.
void check_output_is_no_source(const Options& options, const Source& source);

}  // namespace glu_ckpt::cli
