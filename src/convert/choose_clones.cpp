#include "convert/choose_clones.hpp"

#include <algorithm>

#include "convert/check_output.hpp"
#include "io/directory.hpp"
#include "io/filesystem.hpp"

namespace glu_ckpt {

ClonePlan choose_clones(const Conversion& conversion) {
  const Reflink reflink = conversion.options.reflink;
  if (reflink == Reflink::Never || conversion.target.format != Format::Safetensors) return {};
  const std::filesystem::path parent = directory_of(output_name(conversion.output));
  // Smaller blocks, as XFS can have, are not what runs are placed for.
  CloneLimits limits{std::max(kDataPhaseBytes, filesystem_of(parent).block_bytes)};
  if (reflink == Reflink::Always) limits.min_bytes = limits.min_even_bytes = 0;
  ClonePlan clones(conversion.plan, *conversion.source.source, limits,
                   [&](const File& file) { return can_clone_into(parent, file, limits.block); });
  // Clones cost the whole output its digest, so a small part is not cloned.
  if (reflink == Reflink::Auto && clones.bytes() < conversion.plan.bytes / 2) return {};
  return clones;
}

}  // namespace glu_ckpt
