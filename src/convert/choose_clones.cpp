#include "convert/choose_clones.hpp"

#include <algorithm>

#include "convert/check_output.hpp"
#include "io/directory.hpp"
#include "io/filesystem.hpp"

namespace glu_ckpt::cli {

ClonePlan choose_clones(const Options& options, const Source& source, const Plan& plan, Format format) {
  if (options.reflink == ReflinkMode::Never || format != Format::Safetensors) return {};
  const std::filesystem::path parent = directory_of(output_path(options));
  // Smaller blocks, as XFS can have, are not what runs are placed for.
  CloneLimits limits{std::max(kDataPhaseBytes, filesystem_of(parent).block_bytes)};
  if (options.reflink == ReflinkMode::Always) limits.min_bytes = limits.min_even_bytes = 0;
  ClonePlan clones(plan, source, limits, [&](const File& file) { return can_clone_into(parent, file, limits.block); });
  // What is cloned costs the whole output its digest: not for the sake of a small part.
  if (options.reflink == ReflinkMode::Auto && clones.bytes() < plan.bytes / 2) return {};
  return clones;
}

}  // namespace glu_ckpt::cli
